//! Requests of SQS as values, independent of the protocol. Their contents are borrowed from the received bytes.
//!
//! Names are those of AWS JSON; an alias is the name in the Query protocol.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::errors::{Failure, Result};

/// Maximum number of elements of a list, or entries of a map, in one request. All limits of SQS are far lower.
const ELEMENTS_MAX: usize = 1024;

/// Text that is borrowed if the protocol transmits it unescaped.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Text<'a>(pub Cow<'a, str>);

impl Text<'_> {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a String")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// Whole number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Int(pub i64);

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntVisitor;
        impl Visitor<'_> for IntVisitor {
            type Value = Int;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an Integer")
            }

            fn visit_i64<E>(self, number: i64) -> Result<Int, E> {
                Ok(Int(number))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Int, E> {
                Ok(Int(i64::try_from(number).unwrap_or(i64::MAX)))
            }

            /// Encoders without whole numbers write `30.0`.
            fn visit_f64<E>(self, number: f64) -> Result<Int, E> {
                Ok(Int(number as i64))
            }
        }
        deserializer.deserialize_i64(IntVisitor)
    }
}

/// Bytes, which are base64 on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob(pub Vec<u8>);

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?;
        BASE64
            .decode(text.as_str())
            .map(Self)
            .map_err(|error| D::Error::custom(format!("a Blob is not base64: {error}")))
    }
}

/// List of at most [`ELEMENTS_MAX`] elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = seq.next_element()? {
                    if list.len() == ELEMENTS_MAX {
                        return Err(A::Error::custom(format!("a list has more than {ELEMENTS_MAX} elements")));
                    }
                    list.push(element);
                }
                Ok(List(list))
            }
        }
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

/// Map in the order in which it was written. A name may occur twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map<'a, T>(pub Vec<(Text<'a>, T)>);

impl<T> Default for Map<'_, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'a, T> Map<'a, T> {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Map<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for MapVisitor<T> {
            type Value = Map<'de, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map<'de, T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == ELEMENTS_MAX {
                        return Err(A::Error::custom(format!("a map has more than {ELEMENTS_MAX} entries")));
                    }
                    entries.push(entry);
                }
                Ok(Map(entries))
            }
        }
        deserializer.deserialize_map(MapVisitor(PhantomData))
    }
}

/// Attribute of a message. Its type determines which value is present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AttributeValue<'a> {
    #[serde(borrow)]
    pub data_type: Option<Text<'a>>,
    #[serde(borrow)]
    pub string_value: Option<Text<'a>>,
    pub binary_value: Option<Blob>,
}

/// Declares the requests. All members are optional here and checked when they are used.
macro_rules! requests {
    ($($name:ident { $($(#[$meta:meta])* $member:ident: $type:ty,)* })*) => {
        $(
            #[derive(Debug, Default, PartialEq, Eq, Deserialize)]
            #[serde(rename_all = "PascalCase")]
            pub(super) struct $name<'a> {
                $($(#[$meta])* pub $member: Option<$type>,)*
            }
        )*

        /// Action of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Action {
            $($name,)*
        }

        impl Action {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Returns `true` if the action changes nothing, so that anyone who can make a client fetch a URL may
            /// request it.
            pub fn only_reads(self) -> bool {
                matches!(
                    self,
                    Self::GetQueueAttributes
                        | Self::GetQueueUrl
                        | Self::ListDeadLetterSourceQueues
                        | Self::ListMessageMoveTasks
                        | Self::ListQueues
                        | Self::ListQueueTags
                )
            }
        }

        /// Decoded request, which is not checked yet.
        #[derive(Debug, PartialEq, Eq)]
        pub(super) enum Request<'a> {
            $($name($name<'a>),)*
        }

        impl<'a> Request<'a> {
            pub fn action(&self) -> Action {
                match self {
                    $(Self::$name(_) => Action::$name,)*
                }
            }

            pub fn deserialize<D: Deserializer<'a>>(action: Action, deserializer: D) -> Result<Self, D::Error> {
                match action {
                    $(Action::$name => $name::deserialize(deserializer).map(Self::$name),)*
                }
            }
        }
    };
}

requests! {
    SendMessage {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow)] message_body: Text<'a>,
        delay_seconds: Int,
        #[serde(borrow, alias = "MessageAttribute")] message_attributes: Map<'a, AttributeValue<'a>>,
        #[serde(borrow, alias = "MessageSystemAttribute")] message_system_attributes: Map<'a, AttributeValue<'a>>,
        #[serde(borrow)] message_deduplication_id: Text<'a>,
        #[serde(borrow)] message_group_id: Text<'a>,
    }
    SendMessageBatch {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow, alias = "SendMessageBatchRequestEntry")] entries: List<SendEntry<'a>>,
    }
    ReceiveMessage {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow, alias = "AttributeName")] attribute_names: List<Text<'a>>,
        #[serde(borrow, alias = "MessageSystemAttributeName")] message_system_attribute_names: List<Text<'a>>,
        #[serde(borrow, alias = "MessageAttributeName")] message_attribute_names: List<Text<'a>>,
        max_number_of_messages: Int,
        visibility_timeout: Int,
        wait_time_seconds: Int,
        #[serde(borrow)] receive_request_attempt_id: Text<'a>,
    }
    DeleteMessage {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow)] receipt_handle: Text<'a>,
    }
    DeleteMessageBatch {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow, alias = "DeleteMessageBatchRequestEntry")] entries: List<ReceiptEntry<'a>>,
    }
    ChangeMessageVisibility {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow)] receipt_handle: Text<'a>,
        visibility_timeout: Int,
    }
    ChangeMessageVisibilityBatch {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow, alias = "ChangeMessageVisibilityBatchRequestEntry")] entries: List<ReceiptEntry<'a>>,
    }
    CreateQueue {
        #[serde(borrow)] queue_name: Text<'a>,
        #[serde(borrow, alias = "Attribute")] attributes: Map<'a, Text<'a>>,
        #[serde(borrow, rename = "tags", alias = "Tag")] tags: Map<'a, Text<'a>>,
    }
    DeleteQueue {
        #[serde(borrow)] queue_url: Text<'a>,
    }
    GetQueueUrl {
        #[serde(borrow)] queue_name: Text<'a>,
        #[serde(borrow, rename = "QueueOwnerAWSAccountId")] queue_owner: Text<'a>,
    }
    ListQueues {
        #[serde(borrow)] queue_name_prefix: Text<'a>,
        #[serde(borrow)] next_token: Text<'a>,
        max_results: Int,
    }
    ListDeadLetterSourceQueues {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow)] next_token: Text<'a>,
        max_results: Int,
    }
    GetQueueAttributes {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow, alias = "AttributeName")] attribute_names: List<Text<'a>>,
    }
    SetQueueAttributes {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow, alias = "Attribute")] attributes: Map<'a, Text<'a>>,
    }
    PurgeQueue {
        #[serde(borrow)] queue_url: Text<'a>,
    }
    TagQueue {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow, alias = "Tag")] tags: Map<'a, Text<'a>>,
    }
    UntagQueue {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow, alias = "TagKey")] tag_keys: List<Text<'a>>,
    }
    ListQueueTags {
        #[serde(borrow)] queue_url: Text<'a>,
    }
    AddPermission {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow)] label: Text<'a>,
        #[serde(borrow, rename = "AWSAccountIds", alias = "AWSAccountId")] account_ids: List<Text<'a>>,
        #[serde(borrow, alias = "ActionName")] actions: List<Text<'a>>,
    }
    RemovePermission {
        #[serde(borrow)] queue_url: Text<'a>,
        #[serde(borrow)] label: Text<'a>,
    }
    StartMessageMoveTask {
        #[serde(borrow)] source_arn: Text<'a>,
        #[serde(borrow)] destination_arn: Text<'a>,
        max_number_of_messages_per_second: Int,
    }
    CancelMessageMoveTask {
        #[serde(borrow)] task_handle: Text<'a>,
    }
    ListMessageMoveTasks {
        #[serde(borrow)] source_arn: Text<'a>,
        max_results: Int,
    }
}

/// Message of a batch that is sent.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SendEntry<'a> {
    #[serde(borrow)]
    pub id: Option<Text<'a>>,
    #[serde(borrow)]
    pub message_body: Option<Text<'a>>,
    pub delay_seconds: Option<Int>,
    #[serde(borrow, alias = "MessageAttribute")]
    pub message_attributes: Option<Map<'a, AttributeValue<'a>>>,
    #[serde(borrow, alias = "MessageSystemAttribute")]
    pub message_system_attributes: Option<Map<'a, AttributeValue<'a>>>,
    #[serde(borrow)]
    pub message_deduplication_id: Option<Text<'a>>,
    #[serde(borrow)]
    pub message_group_id: Option<Text<'a>>,
}

/// Message of a batch that is deleted, or whose visibility is changed.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ReceiptEntry<'a> {
    #[serde(borrow)]
    pub id: Option<Text<'a>>,
    #[serde(borrow)]
    pub receipt_handle: Option<Text<'a>>,
    pub visibility_timeout: Option<Int>,
}

impl Action {
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|action| action.name() == name)
    }
}

/// Returns a required member, or the error that it is missing.
pub(super) fn required<'t, T>(name: &str, member: &'t Option<T>) -> Result<&'t T> {
    member.as_ref().ok_or_else(|| Failure::missing(name))
}

/// Returns a required text, or the error that it is missing or empty.
pub(super) fn required_text<'t>(name: &str, member: &'t Option<Text<'_>>) -> Result<&'t str> {
    member.as_ref().map(Text::as_str).filter(|text| !text.is_empty()).ok_or_else(|| Failure::missing(name))
}
