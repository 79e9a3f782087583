//! Requests of the HTTP API, from its OpenAPI description.

use maud::html;
use serde_json::Value;

use crate::parts::table;
use crate::shell::Page;

/// Renders the methods and paths of a description in JSON.
pub fn page(description: &str) -> Page {
    let rows = requests(description);
    let rows = html! { @for (method, path, summary) in &rows { tr {
        th scope="row" { code { (method) } }
        td { code { (path) } }
        td.help { (summary) }
    } } };
    Page::new("API").rest(html! {
        p { "Each action of the console is one of these requests. The whole description, with parameters and bodies,"
            " is "
            a href="/v1/openapi.json" { "openapi.json" } " (OpenAPI 3.1)." }
        (table("Requests", &["Method", "Path", "What it does"], rows))
    })
}

fn requests(description: &str) -> Vec<(String, String, String)> {
    let description: Value = serde_json::from_str(description).unwrap_or_default();
    let mut requests = Vec::new();
    for (path, item) in description["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten().filter(|(name, _)| *name != "parameters") {
            let summary = operation["summary"].as_str().unwrap_or_default();
            requests.push((method.to_uppercase(), path.clone(), summary.to_owned()));
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_a_path_is_listed() {
        let text = r#"{"paths":{"/v1/t":{"parameters":[],"get":{"summary":"List <t>"},"put":{"summary":"Create"}}}}"#;
        assert_eq!(requests(text).len(), 2);
        let page = page(text).rest.into_string();
        assert!(page.contains("List &lt;t&gt;") && page.contains("PUT"), "{page}");
    }
}
