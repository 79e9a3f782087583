//! Encoding of the Query protocol: XML with flattened lists and maps.

use super::codec::{Fields, Names};

/// Encoder of elements.
pub(super) struct Xml {
    out: Vec<u8>,
}

impl Xml {
    pub fn new(out: Vec<u8>) -> Self {
        Self { out }
    }

    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// Writes the XML declaration.
    pub fn declare(&mut self) {
        self.out.extend_from_slice(b"<?xml version=\"1.0\"?>");
    }

    /// Writes the start tag of an element, with these attributes.
    fn open(&mut self, name: &str, attributes: &str) {
        self.out.push(b'<');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(attributes.as_bytes());
        self.out.push(b'>');
    }

    fn close(&mut self, name: &str) {
        self.out.extend_from_slice(b"</");
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(b'>');
    }

    /// Writes an element with its contents, or an empty-element tag if the contents are empty.
    pub fn nested(&mut self, name: &str, attributes: &str, write: impl FnOnce(&mut Self)) {
        self.open(name, attributes);
        let begin = self.out.len();
        write(self);
        if self.out.len() > begin {
            return self.close(name);
        }
        self.out.pop();
        self.out.extend_from_slice(b"/>");
    }

    fn element(&mut self, name: &str, value: &str) {
        self.open(name, "");
        self.escaped(value);
        self.close(name);
    }

    /// Writes text with escapes. Parsers read a carriage return as a line feed unless it is escaped.
    fn escaped(&mut self, text: &str) {
        let mut rest = text.as_bytes();
        let is_special = |byte: &u8| matches!(byte, b'&' | b'<' | b'>' | b'"' | b'\r');
        while let Some(at) = rest.iter().position(is_special) {
            self.out.extend_from_slice(&rest[..at]);
            self.out.extend_from_slice(match rest[at] {
                b'&' => b"&amp;",
                b'<' => b"&lt;",
                b'>' => b"&gt;",
                b'"' => b"&quot;",
                _ => b"&#xD;",
            });
            rest = &rest[at + 1..];
        }
        self.out.extend_from_slice(rest);
    }
}

impl Fields for Xml {
    fn text(&mut self, name: &'static str, value: &str) {
        self.element(name, value);
    }

    fn number(&mut self, name: &'static str, value: u64) {
        self.element(name, &value.to_string());
    }

    fn flag(&mut self, name: &'static str, value: bool) {
        self.element(name, if value { "true" } else { "false" });
    }

    fn texts<'t>(&mut self, names: Names, values: impl IntoIterator<Item = &'t str>) {
        for value in values {
            self.element(names.xml, value);
        }
    }

    fn list<T>(&mut self, names: Names, items: impl IntoIterator<Item = T>, mut each: impl FnMut(&mut Self, T)) {
        for item in items {
            self.open(names.xml, "");
            each(self, item);
            self.close(names.xml);
        }
    }

    fn map<'t>(&mut self, names: Names, entries: impl IntoIterator<Item = (&'t str, &'t str)>) {
        for (name, value) in entries {
            self.open(names.xml, "");
            self.element(names.key, name);
            self.element("Value", value);
            self.close(names.xml);
        }
    }

    fn map_of<'t, T>(
        &mut self,
        names: Names,
        entries: impl IntoIterator<Item = (&'t str, T)>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        for (name, value) in entries {
            self.open(names.xml, "");
            self.element(names.key, name);
            self.open("Value", "");
            each(self, value);
            self.close("Value");
            self.close(names.xml);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_reader_would_change_are_escaped() {
        let mut xml = Xml::new(Vec::new());
        xml.text("Body", "<a b=\"c\">&amp;\r\n\t]]></a>");
        let out = String::from_utf8(xml.finish()).expect("text");
        assert_eq!(out, "<Body>&lt;a b=&quot;c&quot;&gt;&amp;amp;&#xD;\n\t]]&gt;&lt;/a&gt;</Body>");
    }
}
