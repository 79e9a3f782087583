//! Encoding of the Query protocol as JSON: the form that the service writes for clients that accept it, and the XML
//! with each element as a member, as LocalStack writes it.

use super::codec::{Answer, Fields, Names};
use super::errors::Failure;
use super::json::Json;

/// Form of the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Members of the structures of the service. A missing value is null, and a map is a list of names and values.
    Service,
    /// Elements of the XML. Several with the same name are a list, a single one is not, and all values are texts.
    Elements,
}

/// Encoder of one object.
struct Document {
    json: Json,
    form: Form,
}

/// Encodes a successful response.
pub(super) fn answer(form: Form, action: &str, answer: &Answer, request_id: &str) -> Vec<u8> {
    let mut document = Document { json: Json::new(Vec::with_capacity(answer.bytes_hint())), form };
    document.nested(&format!("{action}Response"), |document| {
        if !matches!(answer, Answer::Nothing) {
            let result = format!("{action}Result");
            if form == Form::Elements && answer.is_empty() {
                document.json.null(&result)
            } else {
                document.nested(&result, |document| answer.write(document))
            }
        }
        document.nested("ResponseMetadata", |document| document.text("RequestId", request_id));
    });
    document.json.finish()
}

pub(super) fn error(form: Form, failure: &Failure, request_id: &str) -> Vec<u8> {
    let mut document = Document { json: Json::new(Vec::new()), form };
    let write = |document: &mut Document| {
        document.nested("Error", |document| {
            document.text("Type", if failure.code.is_sender { "Sender" } else { "Receiver" });
            document.text("Code", failure.code.name);
            document.text("Message", failure.query_message());
            if form == Form::Elements {
                document.json.null("Detail");
            }
        });
        document.text("RequestId", request_id);
    };
    match form {
        Form::Service => write(&mut document),
        Form::Elements => document.nested("ErrorResponse", write),
    }
    document.json.finish()
}

impl Document {
    fn nested(&mut self, name: &str, write: impl FnOnce(&mut Self)) {
        self.json.name(name);
        self.object(write);
    }

    fn object(&mut self, write: impl FnOnce(&mut Self)) {
        self.json.open(b'{');
        write(self);
        self.json.close(b'}');
    }

    fn items<T>(&mut self, names: Names, items: impl IntoIterator<Item = T>, mut each: impl FnMut(&mut Self, T)) {
        let mut items = items.into_iter().peekable();
        let name = match (self.form, names.json) {
            (Form::Elements, _) => names.xml,
            (Form::Service, "Messages") => "messages",
            (Form::Service, "QueueUrls") => "queueUrls",
            (Form::Service, json) => json,
        };
        let Some(first) = items.next() else {
            if self.form == Form::Service {
                self.json.null(name);
            }
            return;
        };
        self.json.name(name);
        if self.form == Form::Elements && items.peek().is_none() {
            return each(self, first);
        }
        self.json.open(b'[');
        for item in std::iter::once(first).chain(items) {
            self.json.next();
            each(self, item);
        }
        self.json.close(b']');
    }
}

impl Fields for Document {
    fn text(&mut self, name: &'static str, value: &str) {
        self.json.text(name, value);
    }

    fn number(&mut self, name: &'static str, value: u64) {
        match self.form {
            Form::Service => self.json.number(name, value),
            Form::Elements => self.json.text(name, &value.to_string()),
        }
    }

    fn flag(&mut self, name: &'static str, value: bool) {
        match self.form {
            Form::Service => self.json.flag(name, value),
            Form::Elements => self.json.text(name, if value { "true" } else { "false" }),
        }
    }

    fn texts<'t>(&mut self, names: Names, values: impl IntoIterator<Item = &'t str>) {
        self.items(names, values, |document, value| document.json.string(value));
    }

    fn list<T>(&mut self, names: Names, items: impl IntoIterator<Item = T>, mut each: impl FnMut(&mut Self, T)) {
        self.items(names, items, |document, item| document.object(|document| each(document, item)));
    }

    fn map<'t>(&mut self, names: Names, entries: impl IntoIterator<Item = (&'t str, &'t str)>) {
        self.items(names, entries, |document, (name, value)| {
            document.object(|document| {
                document.text(names.key, name);
                document.text("Value", value);
            });
        });
    }

    fn map_of<'t, T>(
        &mut self,
        names: Names,
        entries: impl IntoIterator<Item = (&'t str, T)>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        self.items(names, entries, |document, (name, value)| {
            document.object(|document| {
                document.text(names.key, name);
                document.nested("Value", |document| each(document, value));
            });
        });
    }

    fn text_if(&mut self, name: &'static str, value: Option<&str>) {
        match (value, self.form) {
            (Some(value), _) => self.text(name, value),
            (None, Form::Service) => self.json.null(name),
            (None, Form::Elements) => {}
        }
    }

    fn number_if(&mut self, name: &'static str, value: Option<u64>) {
        match (value, self.form) {
            (Some(value), _) => self.number(name, value),
            (None, Form::Service) => self.json.null(name),
            (None, Form::Elements) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::super::codec::{Shown, ShownAttribute};
    use super::*;

    fn written(form: Form, action: &str, of: &Answer) -> Value {
        serde_json::from_slice(&answer(form, action, of, "id")).expect("JSON")
    }

    fn message(body: &'static str) -> Shown {
        let attribute = ShownAttribute { name: "a".into(), data_type: "Number".into(), value: "5".into() };
        let system = vec![("SenderId", "me".to_owned()), ("SentTimestamp", "7".to_owned())];
        let body = Bytes::from(body);
        Shown { id: "m".into(), receipt: "r".into(), body, system, attributes: vec![attribute] }
    }

    /// Responses with and without messages are from the samples of AWS for API Gateway and SQS (serverless-patterns),
    /// attributes from LocalStack's tests of AWS (`test_get_queue_attributes_json_format`).
    #[test]
    fn the_service_writes_null_for_missing_values_and_lists_for_maps() {
        assert_eq!(
            written(Form::Service, "ReceiveMessage", &Answer::Messages(Vec::new())),
            json!({"ReceiveMessageResponse": {
                "ReceiveMessageResult": {"messages": null},
                "ResponseMetadata": {"RequestId": "id"},
            }})
        );
        let attributes = Answer::Attributes(vec![("QueueArn", "arn".to_owned())]);
        let attributes = written(Form::Service, "GetQueueAttributes", &attributes);
        assert_eq!(
            attributes["GetQueueAttributesResponse"]["GetQueueAttributesResult"],
            json!({"Attributes": [{"Name": "QueueArn", "Value": "arn"}]})
        );
        let one = written(Form::Service, "ReceiveMessage", &Answer::Messages(vec![message("x")]));
        let one = &one["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"][0];
        assert_eq!(one["Attributes"][1], json!({"Name": "SentTimestamp", "Value": "7"}));
        assert_eq!(
            one["MessageAttributes"],
            json!([{"Name": "a", "Value": {"StringValue": "5", "DataType": "Number"}}])
        );
        let nothing = written(Form::Service, "DeleteMessage", &Answer::Nothing);
        assert_eq!(nothing, json!({"DeleteMessageResponse": {"ResponseMetadata": {"RequestId": "id"}}}));
        let failed: Value = serde_json::from_slice(&error(Form::Service, &Failure::no_queue(), "id")).expect("JSON");
        assert_eq!(
            (&failed["Error"]["Code"], &failed["RequestId"]),
            (&json!("AWS.SimpleQueueService.NonExistentQueue"), &json!("id"))
        );
    }

    /// LocalStack converts its XML to JSON with `xmltodict` (`test_list_messages_as_json`).
    #[test]
    fn elements_of_one_name_are_a_list_and_one_alone_is_not() {
        let result = |messages| {
            let document = written(Form::Elements, "ReceiveMessage", &Answer::Messages(messages));
            document["ReceiveMessageResponse"]["ReceiveMessageResult"].clone()
        };
        assert_eq!(result(Vec::new()), Value::Null);
        assert_eq!(result(vec![message("x")])["Message"]["Body"], "x");
        let two = result(vec![message("x"), message("y")]);
        assert_eq!(
            (&two["Message"][1]["Body"], &two["Message"][0]["MessageAttribute"]["Name"]),
            (&json!("y"), &json!("a"))
        );
        assert_eq!(two["Message"][0]["Attribute"][0], json!({"Name": "SenderId", "Value": "me"}));
        let failed: Value = serde_json::from_slice(&error(Form::Elements, &Failure::no_queue(), "id")).expect("JSON");
        assert_eq!(failed["ErrorResponse"]["Error"]["Code"], "AWS.SimpleQueueService.NonExistentQueue");
    }
}
