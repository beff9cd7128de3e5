//! Macros, operators and literals that are not functions, for the table of all functions.
//!
//! The modules `check` and `eval` have their types, code and cost. The costs are beside those of the operands;
//! those of macros hold for each element that is processed.

/// Minor release since which new expressions may use the form, the form, its cost and the size of its result.
pub(super) static FORMS: &[(u32, &str, &str, &str)] = &[
    (0, "identifier", "1; 0 as branch or index", "of the variable"),
    (0, "e.f, e[i]", "1 and 1 for each link", "of the field or element"),
    (0, "literal of a number, text, boolean or null", "0", "of the text"),
    (0, "[e, ...]", "10; 0 of constants", "number of elements"),
    (0, "{k: v, ...}", "30; 0 of constants", "number of entries"),
    (0, "Type{f: v, ...}", "40", "-"),
    (0, "_&&_(bool, bool) -> bool", "0", "-"),
    (0, "_||_(bool, bool) -> bool", "0", "-"),
    (0, "_?_:_(bool, A, A) -> A", "0", "of the larger branch"),
    (0, "has(e.f) -> bool", "1 for each link", "-"),
    (0, ".list(A).all(x, bool) -> bool, .map(A, B).all(k, bool) -> bool", "3 + condition; 1 at the end", "-"),
    (0, ".list(A).exists(x, bool) -> bool", "4 + condition; 1 at the end", "-"),
    (0, ".list(A).exists_one(x, bool) -> bool", "condition, 2 if true; 2 at the end", "-"),
    (0, ".list(A).filter(x, bool) -> list(A)", "condition, 13 if true; 1 at the end", "0 to size"),
    (0, ".list(A).map(x, B) -> list(B)", "12 + element, 2 if constant; 1 at the end", "size"),
    (0, ".list(A).map(x, bool, B) -> list(B)", "condition, 12 + element if true; 1 at the end", "0 to size"),
    (29, "e.?f, e[?i] -> optional(A)", "1 for each link that selects a value", "of the field or element"),
    (29, ".optional(A).or(optional(A)) -> optional(A)", "0", "of the larger operand"),
    (29, ".optional(A).orValue(A) -> A", "0", "of the larger operand"),
    (
        29,
        ".optional(A).optMap(x, B) -> optional(B)",
        "2, and 1 + cost of the operand again if x is used",
        "of the body",
    ),
    (
        29,
        ".optional(A).optFlatMap(x, optional(B)) -> optional(B)",
        "1, and 1 + cost of the operand again if x is used",
        "of the body",
    ),
    (
        32,
        ".list(A).all(i, x, bool) -> bool, .map(A, B).all(k, v, bool) -> bool",
        "3 + condition; 1 at the end",
        "-",
    ),
    (32, ".list(A).exists(i, x, bool) -> bool", "4 + condition; 1 at the end", "-"),
    (
        32,
        ".list(A).existsOne(i, x, bool) -> bool, also exists_one",
        "condition, 2 if true; 2 at the end",
        "-",
    ),
    (32, ".list(A).transformList(i, x, B) -> list(B)", "12 + element, 2 if constant; 1 at the end", "size"),
    (
        32,
        ".list(A).transformList(i, x, bool, B) -> list(B)",
        "condition, 12 + element if true; 1 at the end",
        "0 to size",
    ),
    (32, ".map(A, B).transformMap(k, v, C) -> map(A, C)", "3 + value; 1 at the end", "size"),
    (
        32,
        ".map(A, B).transformMap(k, v, bool, C) -> map(A, C)",
        "condition, 3 + value if true; 1 at the end",
        "0 to size",
    ),
    (32, ".map(A, B).transformMapEntry(k, v, map(C, D)) -> map(C, D)", "2 + entry; 1 at the end", "size"),
    (
        32,
        ".map(A, B).transformMapEntry(k, v, bool, map(C, D)) -> map(C, D)",
        "condition, 2 + entry if true; 1 at the end",
        "0 to size",
    ),
];
