//! Prints the matrix as an HTML page with a heat map, which loads no other resource.
//!
//! # Invariants
//!
//! INVARIANT (no injection): names of subjects and resources are escaped text; the script contains no data.
//! The content security policy of the page allows only its own style and script, by their hashes.

use std::fmt::Write as _;

use apimachinery::printable::is_unprintable;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Access, Matrix, Row};
use crate::inspect::subjects::subject_name;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Returns the page.
pub(super) fn page(matrix: &Matrix) -> String {
    let (scope, bindings) = match matrix.namespace.as_str() {
        "" => ("all namespaces".to_owned(), " RoleBindings are not included."),
        namespace => (format!("namespace {}", escape(namespace)), ""),
    };
    let (style, script) = (sha256_base64(STYLE), sha256_base64(SCRIPT));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Access matrix: {scope}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>Access matrix: {scope}</h1>\n\
         <p>RBAC permissions of each subject. Other authorizers and memberships of groups are not shown.{bindings}</p>\n\
         <form role=\"search\"><label for=\"filter\">Filter</label> \
         <input id=\"filter\" type=\"search\" autocomplete=\"off\"> \
         <label for=\"access\">Access</label> <select id=\"access\"><option value=\"\">any</option>\
         <option value=\"all\">all objects</option><option value=\"named\">named objects</option></select> \
         <output id=\"count\" for=\"filter access\">{} rows</output></form>\n\
         <table>\n<caption>Subjects, resources and verbs</caption>\n<thead><tr>",
        matrix.rows.len()
    );
    let titles = ["Kind", "Subject", "Resource"].map(str::to_owned).into_iter();
    for title in titles.chain(matrix.verbs.iter().map(|verb| escape(verb))) {
        // Writing to a String does not fail.
        let _ =
            write!(out, "<th scope=\"col\" aria-sort=\"none\"><button type=\"button\">{title}</button></th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &matrix.rows {
        write_row(&mut out, row);
    }
    let _ = write!(out, "</tbody>\n</table>\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn write_row(out: &mut String, row: &Row) {
    let (kind, subject) = (row.subject.kind.as_str(), escape(&subject_name(&row.subject)));
    let resource = escape(&row.resource);
    let _ = write!(out, "<tr><td>{kind}</td><th scope=\"row\">{subject}</th><td>{resource}</td>");
    for cell in &row.cells {
        let text = match cell {
            Access::None => "",
            Access::Named | Access::All => cell.word(),
        };
        let _ = write!(out, "<td class=\"{}\">{text}</td>", cell.word());
    }
    out.push_str("</tr>\n");
}

/// Escapes text for HTML, also for quoted attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if is_unprintable(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Returns the base64 SHA-256 of an inline style or script, for the content security policy.
fn sha256_base64(text: &str) -> String {
    STANDARD.encode(digest(&SHA256, text.as_bytes()))
}
