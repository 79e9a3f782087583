//! Receivers of the parts of a value in JSON.

use serde::Serialize;

/// Receiver of the parts of a value in JSON. It fails once it has no room.
pub(super) trait Sink {
    fn raw(&mut self, text: &str) -> Result<(), String>;
    fn string(&mut self, text: &str) -> Result<(), String>;
    /// Receives bytes, each as the character with its number.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), String>;
    fn integer(&mut self, integer: i64) -> Result<(), String>;
    fn float(&mut self, float: impl Serialize + Into<f64> + Copy) -> Result<(), String>;
}

/// Sink of a check, which keeps nothing.
impl Sink for () {
    fn raw(&mut self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn string(&mut self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn bytes(&mut self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn integer(&mut self, _: i64) -> Result<(), String> {
        Ok(())
    }

    fn float(&mut self, _: impl Serialize + Into<f64> + Copy) -> Result<(), String> {
        Ok(())
    }
}

/// Text of limited length.
pub(super) struct Text {
    text: String,
    bytes_max: usize,
}

impl Text {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { text: String::new(), bytes_max }
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }

    fn check(&self, more: usize) -> Result<(), String> {
        if self.text.len() + more <= self.bytes_max {
            return Ok(());
        }
        Err(format!("the text of the message has more than {} bytes", self.bytes_max))
    }
}

impl Sink for Text {
    fn raw(&mut self, text: &str) -> Result<(), String> {
        self.check(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), String> {
        self.check(text.len())?;
        let quoted = serde_json::to_string(text).map_err(|error| error.to_string())?;
        self.raw(&quoted)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.check(bytes.len())?;
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        self.string(&text)
    }

    fn integer(&mut self, integer: i64) -> Result<(), String> {
        self.raw(&integer.to_string())
    }

    /// Receives a number. Those that JSON does not have become texts, as in the JSON of protocol buffers.
    fn float(&mut self, float: impl Serialize + Into<f64> + Copy) -> Result<(), String> {
        match float.into() {
            value if value.is_nan() => self.raw("\"NaN\""),
            f64::INFINITY => self.raw("\"Infinity\""),
            f64::NEG_INFINITY => self.raw("\"-Infinity\""),
            // The digits of a float are fewer than those of the double that it equals.
            _finite => self.raw(&serde_json::to_string(&float).map_err(|error| error.to_string())?),
        }
    }
}
