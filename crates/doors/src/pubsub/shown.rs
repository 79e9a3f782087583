//! Values of records as text, by the schemas that their attributes name: for pages that people read.

use std::sync::Arc;

use broker::{Broker, Identity};
use engine::security::{Operation, Resource, ResourceKind};

use super::names::{Kind, Name, Names};
use super::schema::{Encoding, Revision, text_of_binary};
use super::schemas::{DOCUMENT, ENCODING, REVISION, SCHEMA};

/// Maximum size of an attribute that names a schema or its revision: longer than any valid one.
const ATTRIBUTE_BYTES_MAX: usize = 512;

/// Attributes of a record that name the revision of a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    schema: String,
    revision: String,
}

impl Named {
    /// Returns the revision that a record names with these headers; `None` if it names none, or if its value is text
    /// already.
    pub(crate) fn of<'h>(headers: impl Iterator<Item = (&'h [u8], Option<&'h [u8]>)>) -> Option<Self> {
        let mut named = Self::default();
        let mut is_binary = false;
        for (name, value) in headers {
            let value = value.filter(|value| value.len() <= ATTRIBUTE_BYTES_MAX);
            let Some(Ok(value)) = value.map(std::str::from_utf8) else { continue };
            match name {
                _ if name == ENCODING.as_bytes() => is_binary = value == Encoding::Binary.name(),
                _ if name == SCHEMA.as_bytes() => value.clone_into(&mut named.schema),
                _ if name == REVISION.as_bytes() => value.clone_into(&mut named.revision),
                _ => {}
            }
        }
        (is_binary && !named.schema.is_empty() && !named.revision.is_empty()).then_some(named)
    }

    /// Returns the name of the schema and its revision.
    pub(crate) fn name(&self) -> String {
        format!("{}@{}", self.schema, self.revision)
    }

    /// Returns the text of a value of at most `bytes_max` bytes. The error says why there is none.
    ///
    /// Anyone who may publish chooses the attributes of a record. So the schema is read only for a client that may
    /// describe it.
    pub(crate) async fn text_of(
        &self,
        (broker, project, identity): (&Arc<Broker>, &str, &Identity),
        value: &[u8],
        bytes_max: usize,
    ) -> Result<String, String> {
        let name = Name::parse(Kind::Schema, &self.schema).map_err(|failure| failure.message)?;
        let inner = Names::new(project.to_owned()).inner(&name);
        let resource = Resource::new(ResourceKind::Schema, &inner);
        if !broker.security.allows(identity, Operation::Describe, &resource) {
            return Err(format!("it requires the permission to describe the schema {inner}"));
        }
        let document = self.name();
        let stored = broker.documents.get(DOCUMENT, &document).await.map_err(|error| error.message)?;
        let stored = stored.ok_or("the revision of the schema does not exist any more")?;
        let revision = Revision::decode(&document, &stored).map_err(|error| error.message)?;
        let definition = revision.definition.ok_or("the revision of the schema was deleted")?;
        text_of_binary(revision.kind, &definition, value, bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_a_revision_with_three_attributes() {
        let of = |encoding: &str, schema: Option<&str>, revision: &str| {
            let headers = [(ENCODING, Some(encoding)), (SCHEMA, schema), (REVISION, Some(revision)), ("other", None)];
            Named::of(headers.iter().map(|(name, value)| (name.as_bytes(), value.map(str::as_bytes))))
        };
        let named = of("BINARY", Some("projects/p/schemas/orders"), "0a1b2c3d").expect("all three");
        assert_eq!(named.name(), "projects/p/schemas/orders@0a1b2c3d");
        assert_eq!(of("JSON", Some("projects/p/schemas/orders"), "0a1b2c3d"), None, "it is text");
        assert_eq!(of("BINARY", None, "0a1b2c3d"), None);
        assert_eq!(of("BINARY", Some("projects/p/schemas/orders"), ""), None);
        let long = "s".repeat(ATTRIBUTE_BYTES_MAX + 1);
        assert_eq!(of("BINARY", Some(&long), "0a1b2c3d"), None, "a page does not show it");
    }
}
