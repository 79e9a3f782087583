//! Text for HTML, and messages as sentences.

/// Escapes text for HTML, also within an attribute.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns the message of an error as a sentence, with a capital letter and a full stop. A message that begins with the
/// name of a field keeps its first letter.
pub fn sentence(message: &str) -> String {
    let first = message.split([' ', ':']).next().unwrap_or_default();
    let is_word = first.chars().all(char::is_alphabetic) && !message[first.len()..].starts_with(':');
    let mut chars = message.chars();
    let mut text: String = match chars.next() {
        Some(c) if is_word => c.to_uppercase().chain(chars).collect(),
        _ => message.to_owned(),
    };
    if !text.is_empty() && !text.ends_with(['.', '?', '!']) {
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_text_and_messages_become_sentences() {
        assert_eq!(sentence("there is no topic"), "There is no topic.");
        assert_eq!(sentence("max: at least 1"), "max: at least 1.");
        assert_eq!(sentence("http_hosts is wrong."), "http_hosts is wrong.");
        assert_eq!(sentence(""), "");
        assert_eq!(escape("<a b=\"c\">'&"), "&lt;a b=&quot;c&quot;&gt;&#39;&amp;");
    }
}
