//! Schemas: the calls of the schema service, and validation of messages before they are published.

use std::sync::Arc;

use broker::Broker;
use bytes::Bytes;

use super::errors::{Code, Failure, Result};
use super::map::{Ask, Door};
use super::names::{Kind as Resource, Name, parse_project};
use super::pages::{Page, page};
use super::proto::schema::Type;
use super::proto::validate_message_request::SchemaSpec;
use super::proto::{
    self, CommitSchemaRequest, CreateSchemaRequest, DeleteSchemaRequest, DeleteSchemaRevisionRequest, GetSchemaRequest,
    ListSchemaRevisionsRequest, ListSchemaRevisionsResponse, ListSchemasRequest, ListSchemasResponse, PubsubMessage,
    RollbackSchemaRequest, SchemaSettings, SchemaView, ValidateMessageRequest, ValidateMessageResponse,
    ValidateSchemaRequest, ValidateSchemaResponse,
};
use super::schema::{self, Definition, Documents, Encoding, Kind, Range, Refusal, Revision};
use super::times::timestamp;

/// Schema that a topic shows once its schema is deleted.
const DELETED: &str = "_deleted-schema_";
/// Kind of the documents that store revisions.
pub(super) const DOCUMENT: &str = "pubsub.schema";
/// Attributes that the door adds to a message of a topic with a schema
/// (<https://cloud.google.com/pubsub/docs/validate-schema-messages>).
pub(super) const ENCODING: &str = "googclient_schemaencoding";
pub(super) const SCHEMA: &str = "googclient_schemaname";
pub(super) const REVISION: &str = "googclient_schemarevisionid";

/// Number of messages that are checked before other tasks run.
const CHECKED_TOGETHER: usize = 4;
/// Bytes above which a message is checked without blocking a thread of connections.
const ALONE_BYTES: usize = 64 << 10;

/// Storage of revisions in the broker's documents.
pub(super) struct Kept(pub Arc<Broker>);

impl Documents for Kept {
    async fn put(&self, name: &str, value: Option<Bytes>) -> engine::Result<()> {
        self.0.documents.put(DOCUMENT, name, value).await
    }

    async fn list(&self, prefix: &str) -> engine::Result<Vec<(String, Bytes)>> {
        self.0.documents.list(DOCUMENT, prefix).await
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.code {
            schema::Code::InvalidArgument => Code::InvalidArgument,
            schema::Code::NotFound => Code::NotFound,
            schema::Code::AlreadyExists => Code::AlreadyExists,
            schema::Code::ResourceExhausted => Code::ResourceExhausted,
            schema::Code::Unavailable => Code::Unavailable,
        };
        let mut failure = Self::new(code, refusal.message);
        if let Some(info) = refusal.info {
            failure.reason = Some(info.reason);
            failure.reasons = info.metadata.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        }
        failure
    }
}

/// Returns the kind and the text of a definition.
fn defined(schema: Option<&proto::Schema>) -> Result<(Kind, &str)> {
    let schema = schema.ok_or_else(|| Failure::invalid("No schema provided"))?;
    let kind = match Type::try_from(schema.r#type) {
        Ok(Type::Avro) => Kind::Avro,
        Ok(Type::ProtocolBuffer) => Kind::ProtocolBuffer,
        _ => return Err(Failure::invalid("Invalid schema type")),
    };
    Ok((kind, &schema.definition))
}

fn encoding(number: i32) -> Result<Encoding> {
    match proto::Encoding::try_from(number) {
        Ok(proto::Encoding::Json) => Ok(Encoding::Json),
        Ok(proto::Encoding::Binary) => Ok(Encoding::Binary),
        _ => Err(Failure::invalid("Invalid schema encoding provided")),
    }
}

fn shown(revision: Revision, is_full: bool) -> proto::Schema {
    let definition = revision.definition.filter(|_| is_full);
    proto::Schema {
        name: revision.schema,
        r#type: match revision.kind {
            Kind::Avro => Type::Avro,
            Kind::ProtocolBuffer => Type::ProtocolBuffer,
        } as i32,
        definition: definition.unwrap_or_default(),
        revision_id: revision.id,
        revision_create_time: Some(timestamp(revision.created_ms)),
    }
}

pub(super) async fn create(ask: Ask, request: CreateSchemaRequest) -> Result<proto::Schema> {
    parse_project(&request.parent)?;
    let (kind, text) = defined(request.schema.as_ref())?;
    let name = format!("{}/schemas/{}", request.parent, request.schema_id);
    Ok(shown(ask.door.schemas.create(&name, kind, text, ask.door.broker.now_ms()).await?, true))
}

pub(super) async fn get(ask: Ask, request: GetSchemaRequest) -> Result<proto::Schema> {
    let is_full = request.view != SchemaView::Basic as i32;
    Ok(shown(ask.door.schemas.get(&request.name).await?, is_full))
}

pub(super) async fn list(ask: Ask, request: ListSchemasRequest) -> Result<ListSchemasResponse> {
    parse_project(&request.parent)?;
    let is_shown = |name: &String| match Name::parse(Resource::Schema, name) {
        Ok(parsed) => ask.shows_all(Resource::Schema, &ask.door.names.inner(&parsed)),
        Err(_) => ask.identity.tenant().is_none(),
    };
    let names = ask.door.schemas.list(&request.parent).await?.into_iter().filter(is_shown);
    let Page { items, next_page_token } = page(names, String::clone, request.page_size, &request.page_token)?;
    let mut schemas = Vec::with_capacity(items.len());
    for name in items {
        match ask.door.schemas.get(&name).await {
            Ok(revision) => schemas.push(shown(revision, request.view == SchemaView::Full as i32)),
            // It was deleted in the meantime.
            Err(refusal) if refusal.code == schema::Code::NotFound => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(ListSchemasResponse { schemas, next_page_token })
}

/// Lists the revisions, newest first. They always fit on one page.
pub(super) async fn list_revisions(
    ask: Ask,
    request: ListSchemaRevisionsRequest,
) -> Result<ListSchemaRevisionsResponse> {
    let is_full = request.view == SchemaView::Full as i32;
    let revisions = ask.door.schemas.revisions(&request.name).await?.into_iter();
    let schemas = revisions.map(|revision| shown(revision, is_full)).collect();
    Ok(ListSchemaRevisionsResponse { schemas, next_page_token: String::new() })
}

pub(super) async fn commit(ask: Ask, request: CommitSchemaRequest) -> Result<proto::Schema> {
    let (kind, text) = defined(request.schema.as_ref())?;
    Ok(shown(ask.door.schemas.commit(&request.name, kind, text, ask.door.broker.now_ms()).await?, true))
}

pub(super) async fn roll_back(ask: Ask, request: RollbackSchemaRequest) -> Result<proto::Schema> {
    Ok(shown(ask.door.schemas.roll_back(&request.name, &request.revision_id, ask.door.broker.now_ms()).await?, true))
}

/// Deletes a revision. Its id is part of the name; older clients send it separately.
#[expect(deprecated, reason = "clients still ask for it")]
pub(super) async fn delete_revision(ask: Ask, request: DeleteSchemaRevisionRequest) -> Result<proto::Schema> {
    let (name, id) = request.name.split_once('@').unwrap_or((&request.name, &request.revision_id));
    Ok(shown(ask.door.schemas.delete_revision(name, id).await?, true))
}

pub(super) async fn delete(ask: Ask, request: DeleteSchemaRequest) -> Result<()> {
    ask.door.schemas.delete(&request.name).await?;
    super::policies::forget(&ask.door, &Name::parse(Resource::Schema, &request.name)?).await
}

pub(super) async fn validate(_: Ask, request: ValidateSchemaRequest) -> Result<ValidateSchemaResponse> {
    parse_project(&request.parent)?;
    let (kind, text) = defined(request.schema.as_ref())?;
    Definition::parse(kind, text)?;
    Ok(ValidateSchemaResponse {})
}

pub(super) async fn validate_message(ask: Ask, request: ValidateMessageRequest) -> Result<ValidateMessageResponse> {
    parse_project(&request.parent)?;
    let encoding = encoding(request.encoding)?;
    match &request.schema_spec {
        None => return Err(Failure::invalid("No schema provided")),
        Some(SchemaSpec::Name(name)) => ask.door.schemas.check_against(name, encoding, &request.message).await?,
        Some(SchemaSpec::Schema(schema)) => {
            let (kind, text) = defined(Some(schema))?;
            Definition::parse(kind, text)?.admit(encoding, &request.message)?;
        }
    }
    Ok(ValidateMessageResponse {})
}

fn range(settings: &SchemaSettings) -> Range<'_> {
    Range { first: &settings.first_revision_id, last: &settings.last_revision_id }
}

/// Checks that a topic may have these settings.
pub(super) async fn check_settings(door: &Door, settings: &SchemaSettings) -> Result<()> {
    match settings.schema.as_str() {
        "" => return Err(Failure::invalid("No schema name provided")),
        DELETED => return Ok(()),
        _ => {}
    }
    encoding(settings.encoding)?;
    Ok(door.schemas.check_range(&settings.schema, range(settings)).await?)
}

/// Checks messages against the schema of their topic, and adds the revision that each of them follows.
pub(super) async fn check_messages(
    door: &Door,
    settings: Option<&SchemaSettings>,
    messages: &mut [PubsubMessage],
) -> Result<()> {
    let Some(settings) = settings else {
        return Ok(());
    };
    if settings.schema == DELETED {
        return Err(Failure::not_found("Schema associated with topic deleted."));
    }
    let encoding = encoding(settings.encoding)?;
    let candidates = door.schemas.candidates(&settings.schema, range(settings)).await?;
    let answers = door.broker.answers();
    for together in messages.chunks_mut(CHECKED_TOGETHER) {
        // One request at a time, in the order in which they ask.
        let turn = door.checking.lock().await;
        for message in &mut *together {
            let revision = if message.data.len() <= ALONE_BYTES {
                candidates.check(encoding, &message.data).await?
            } else {
                answers.work(message.data.len(), || candidates.check_alone(encoding, &message.data)).await?
            };
            let added =
                [(ENCODING, encoding.name().to_owned()), (SCHEMA, settings.schema.clone()), (REVISION, revision)];
            message.attributes.extend(added.map(|(name, value)| (name.to_owned(), value)));
        }
        drop(turn);
        if together.len() == CHECKED_TOGETHER {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Checks that the schema exists.
pub(super) async fn expect(door: &Door, name: &Name) -> Result<()> {
    door.schemas.get(&name.to_string()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use broker::Settings;
    use tokio::runtime::Handle;

    use super::super::names::Names;
    use super::super::push::Allow;
    use super::*;

    /// Other tasks run between the messages of a request, whose checks may take seconds together.
    #[tokio::test]
    async fn many_messages_are_checked_in_slices() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
        let door = Door::new(broker, Names::new("thalweg".into()), 1 << 20, Allow::default(), false);
        let name = "projects/p/schemas/numbers";
        door.schemas.create(name, Kind::Avro, r#""int""#, 1).await.expect("created");
        let settings = SchemaSettings { schema: name.into(), encoding: 1, ..SchemaSettings::default() };
        let mut messages: Vec<PubsubMessage> =
            (0..1000).map(|i| PubsubMessage { data: i.to_string().into(), ..PubsubMessage::default() }).collect();
        let mut checking = Box::pin(check_messages(&door, Some(&settings), &mut messages));
        let mut pauses = 0;
        let outcome = std::future::poll_fn(|context| {
            let polled = checking.as_mut().poll(context);
            pauses += usize::from(polled.is_pending());
            polled
        });
        outcome.await.expect("valid");
        drop(checking);
        assert!(pauses >= 1000 / CHECKED_TOGETHER, "{pauses}");
        assert!(messages.iter().all(|message| message.attributes.contains_key(REVISION)));
    }
}
