//! What expressions of the authentication configuration see: `claims` and `user`.

use expressions::Type;

/// The type of `claims`: any value under each name.
pub fn claims_type() -> Type {
    Type::map(Type::String, Type::Dyn)
}

/// The type of `user`: what a SelfSubjectReview shows of a user.
pub fn user_type() -> Type {
    let texts = || Type::list(Type::String);
    let fields = [
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", texts()),
        ("extra", Type::map(Type::String, texts())),
    ];
    Type::object("UserInfo", fields.map(|(name, ty)| (name.to_owned(), ty)))
}
