//! Authorization checks of expressions.
//!
//! # Contract
//!
//! The evaluation of expressions is synchronous, but the authorizer is asynchronous. [`AuthorizationAnswers`]
//! holds the answers for one request. A check without an answer gets a placeholder, and the first such check
//! is recorded as missing. [`AuthorizationAnswers::evaluate`] asks the authorizer about the missing check,
//! adds the answer, and evaluates again until no check is missing. Evaluation is deterministic, so each round
//! adds the answer to a check that the expressions need.
//!
//! # Invariants
//!
//! INVARIANT (fair): after a long evaluation the task yields to the other tasks of its thread.

use std::sync::Arc;

use apimachinery::attributes::{Attributes as RequestAttributes, ParsedSelector};
use apimachinery::decision::Decision;
use apimachinery::selector::field::FieldSelector;
use apimachinery::selector::label::LabelSelector;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use expressions::{AuthorizationCheck, AuthorizationResult};
use parking_lot::Mutex;

use crate::Attributes;
use crate::turn::Turn;

/// Answers to the authorization checks of one request.
#[derive(Default)]
pub(crate) struct AuthorizationAnswers {
    answers: Mutex<Vec<(AuthorizationCheck, AuthorizationResult)>>,
    /// The first check without an answer.
    missing: Mutex<Option<AuthorizationCheck>>,
}

impl expressions::Authorizer for AuthorizationAnswers {
    fn check(&self, question: &AuthorizationCheck) -> AuthorizationResult {
        let answers = self.answers.lock();
        if let Some((_, answer)) = answers.iter().find(|(check, _)| check == question) {
            return answer.clone();
        }
        self.missing.lock().get_or_insert_with(|| question.clone());
        AuthorizationResult::default()
    }
}

impl AuthorizationAnswers {
    /// Runs `run`, which evaluates expressions, until all its authorization checks have answers.
    pub(crate) async fn evaluate<T>(&self, attributes: &Attributes<'_>, mut run: impl FnMut() -> T) -> T {
        loop {
            let mut turn = Turn::new(&*attributes.environment.clock);
            let result = run();
            turn.pause().await;
            let Some(check) = self.missing.lock().take() else { return result };
            self.decide(check, attributes).await;
        }
    }

    /// Asks the authorizer about a check and adds the answer.
    async fn decide(&self, check: AuthorizationCheck, attributes: &Attributes<'_>) {
        let account = check
            .service_account
            .as_ref()
            .map(|(namespace, name)| Arc::new(service_account_user(namespace, name)));
        let user = account.as_ref().unwrap_or(attributes.user);
        let authorizer = &attributes.environment.authorizer;
        let decision = authorizer.decide(user, request_attributes(&check)).await;
        self.answers.lock().push((check, authorization_result(decision)));
    }
}

fn service_account_user(namespace: &str, name: &str) -> UserInfo {
    UserInfo {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        groups: vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
        ..UserInfo::default()
    }
}

fn request_attributes(check: &AuthorizationCheck) -> RequestAttributes {
    if let Some(path) = &check.path {
        return RequestAttributes {
            verb: check.verb.clone(),
            path: path.clone(),
            ..RequestAttributes::default()
        };
    }
    let fields = |text: &String| match FieldSelector::parse(text) {
        Ok(selector) => selector.requirements(),
        Err(_) => ParsedSelector::Unparsable(text.clone()),
    };
    let labels = |text: &String| match LabelSelector::parse(text) {
        Ok(selector) => selector.requirements(),
        Err(_) => ParsedSelector::Unparsable(text.clone()),
    };
    RequestAttributes {
        verb: check.verb.clone(),
        resource_request: true,
        group: check.group.clone(),
        version: "*".to_owned(),
        resource: check.resource.clone(),
        subresource: check.subresource.clone(),
        namespace: check.namespace.clone(),
        name: check.name.clone(),
        path: String::new(),
        field_selector: check.field_selector.as_ref().map(fields).unwrap_or_default(),
        label_selector: check.label_selector.as_ref().map(labels).unwrap_or_default(),
    }
}

fn authorization_result(decision: Result<Decision, Status>) -> AuthorizationResult {
    match decision {
        Ok(decision) => AuthorizationResult {
            allowed: decision.allowed(),
            error: (!decision.evaluation_error.is_empty() && !decision.allowed())
                .then(|| decision.evaluation_error.clone()),
            reason: decision.reason,
        },
        Err(status) => {
            AuthorizationResult { allowed: false, reason: String::new(), error: Some(status.message) }
        }
    }
}
