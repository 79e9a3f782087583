//! Definition of messages, and the macros that generate structs and codecs from the tables in `api`.

use std::ops::RangeInclusive;

use bytes::{BufMut, Bytes, BytesMut};
use engine::{Error, Result};

use super::reader::Reader;
use super::value::Value;
use super::writer::Writer;

/// API that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Api {
    pub key: i16,
    pub name: &'static str,
    pub version_min: i16,
    pub version_max: i16,
    /// First version whose lengths are varints and whose structs end with tags.
    pub flexible_since: Option<i16>,
}

impl Api {
    pub fn serves(&self, version: i16) -> bool {
        (self.version_min..=self.version_max).contains(&version)
    }

    pub fn is_flexible(&self, version: i16) -> bool {
        self.flexible_since.is_some_and(|since| version >= since)
    }
}

/// Request, response, or message embedded in one. Its version is one of `VERSIONS`.
pub trait Message: Value {
    const VERSIONS: RangeInclusive<i16>;
    /// First version whose lengths are varints and whose structs end with tags.
    const FLEXIBLE_SINCE: Option<i16>;

    fn is_flexible(version: i16) -> bool {
        Self::FLEXIBLE_SINCE.is_some_and(|since| version >= since)
    }

    /// Sets the time in ms for which the client is delayed, if the message has a field for it.
    fn set_throttle_time(&mut self, ms: i32);

    /// Decodes a message. Bytes after it remain in the reader.
    fn decode(version: i16, from: &mut Reader) -> Result<Self> {
        from.begin(version, Self::is_flexible(version));
        Self::read(from)
    }

    fn encode(&self, version: i16, out: &mut BytesMut) {
        self.write(&mut Writer::new(out, version, Self::is_flexible(version)));
    }
}

/// Decodes a message that begins with its version. A version newer than the newest known is read as the newest known,
/// because new versions only append fields.
pub fn decode_embedded<M: Message>(bytes: Bytes) -> Result<(i16, M)> {
    let mut from = Reader::new(bytes);
    let version: i16 = from.get()?;
    if version < *M::VERSIONS.start() {
        return Err(Error::malformed(format!("version {version} of the metadata of a member is not supported")));
    }
    let known = version.min(*M::VERSIONS.end());
    Ok((version, M::decode(known, &mut from)?))
}

pub fn encode_embedded<M: Message>(message: &M, version: i16) -> Bytes {
    let version = version.clamp(*M::VERSIONS.start(), *M::VERSIONS.end());
    let mut out = BytesMut::new();
    out.put_i16(version);
    message.encode(version, &mut out);
    out.freeze()
}

/// Defines structs with their codecs from tables of their fields.
///
/// A message has its supported versions and the first flexible version. A field has the versions that contain it, the
/// versions that allow a null in it if they are fewer, its name, its type, what it names (see [`Entity`]), and its
/// default if that is not the type's.
/// The fields after `tagged` are written with their tag, and only if they differ from their default.
macro_rules! message {
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@entity $it:ident) => { $crate::kafka::messages::Entity::None };
    (@entity $it:ident $entity:ident $($of:ident)?) => { $crate::kafka::messages::Entity::$entity $(($it.$of))? };
    (@throttle $it:ident $ms:ident throttle_time_ms) => { $it.throttle_time_ms = $ms; };
    (@throttle $it:ident $ms:ident $other:ident) => {};
    (@message $name:ident [] $($field:ident)*) => {};
    (@message $name:ident [$versions:expr, $flexible:expr] $($field:ident)*) => {
        impl $crate::kafka::messages::Message for $name {
            const VERSIONS: std::ops::RangeInclusive<i16> = $versions;
            const FLEXIBLE_SINCE: Option<i16> = $flexible;

            #[allow(unused_variables)]
            fn set_throttle_time(&mut self, ms: i32) {
                let it = self;
                $(message!(@throttle it ms $field);)*
            }
        }
    };
    ($(
        struct $name:ident $(($versions:expr, flexible $flexible:expr))? {
            $($has:pat $(, null $null:pat)? => $field:ident: $kind:ty $(as $entity:ident $(($of:ident))?)?
                $(= $default:expr)?;)*
        } $(tagged {
            $($tag:literal in $tagged_has:pat => $tagged:ident: $tagged_kind:ty $(as $tagged_entity:ident)?
                $(= $tagged_default:expr)?;)*
        })?
    )*) => {$(
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(pub $field: $kind,)*
            $($(pub $tagged: $tagged_kind,)*)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: message!(@default $($default)?),)*
                    $($($tagged: message!(@default $($tagged_default)?),)*)?
                }
            }
        }

        message!(@message $name [$($versions, $flexible)?] $($field)*);

        impl $crate::kafka::messages::Nullable for $name {}

        impl $crate::kafka::messages::Value for $name {
            #[allow(unused_mut, unused_variables)]
            fn read(from: &mut $crate::kafka::messages::Reader) -> engine::Result<Self> {
                let version = from.version();
                let mut it = Self {
                    $($field: if matches!(version, $has) {
                        let value: $kind = from.get()?;
                        $(if !matches!(version, $null) {
                            from.refuse_null(&value)?;
                        })?
                        value
                    } else {
                        message!(@default $($default)?)
                    },)*
                    $($($tagged: message!(@default $($tagged_default)?),)*)?
                };
                from.tagged(|from, tag| {
                    $($(if tag == $tag && matches!(version, $tagged_has) {
                        it.$tagged = from.get()?;
                        return Ok(true);
                    })*)?
                    Ok(false)
                })?;
                Ok(it)
            }

            #[allow(unused_variables)]
            fn write(&self, to: &mut $crate::kafka::messages::Writer<'_>) {
                let version = to.version();
                $(if matches!(version, $has) {
                    $(if !matches!(version, $null) {
                        to.put_present(&self.$field);
                    } else)? {
                        to.put(&self.$field);
                    }
                })*
                to.tagged(|tags| {
                    $($(if matches!(version, $tagged_has) {
                        let default: $tagged_kind = message!(@default $($tagged_default)?);
                        if self.$tagged != default {
                            tags.put($tag, &self.$tagged);
                        }
                    })*)?
                });
            }

            #[allow(unused_mut, unused_variables)]
            fn names(
                &mut self,
                _: $crate::kafka::messages::Entity,
                visit: &mut $crate::kafka::messages::Visit<'_>,
            ) -> bool {
                let it = self;
                let mut is_kept = true;
                $(is_kept &= it.$field.names(message!(@entity it $($entity $($of)?)?), visit);)*
                $($(is_kept &= it.$tagged.names(message!(@entity it $($tagged_entity)?), visit);)*)?
                is_kept
            }
        }

        #[cfg(test)]
        impl $crate::kafka::messages::tests::Sample for $name {
            #[allow(unused_variables)]
            fn sample(random: &mut $crate::kafka::messages::tests::Random) -> Self {
                Self {
                    $($field: random.any(),)*
                    $($($tagged: random.any(),)*)?
                }
            }
        }
    )*};
}

/// Defines the table of the APIs and, for those with generated messages, an enum of the requests and one of the
/// responses.
macro_rules! apis {
    (
        by hand {
            $($hand_key:literal $hand:ident $hand_low:literal..=$hand_high:literal, flexible $hand_flexible:expr;)*
        }
        generated {
            $($key:literal $name:ident $low:literal..=$high:literal, flexible $flexible:expr,
              $module:ident $request:ident $response:ident;)*
        }
    ) => {
        use $crate::kafka::messages::{Api, Message, Reader, Value};

        /// All served APIs, in the order of their keys.
        pub const APIS: &[Api] = &[
            $(Api {
                key: $hand_key,
                name: stringify!($hand),
                version_min: $hand_low,
                version_max: $hand_high,
                flexible_since: $hand_flexible,
            },)*
            $(Api {
                key: $key,
                name: stringify!($name),
                version_min: $low,
                version_max: $high,
                flexible_since: $flexible,
            },)*
        ];

        #[derive(Clone, Debug, PartialEq)]
        pub enum Request {
            $($name($module::$request),)*
        }

        #[derive(Clone, Debug, PartialEq)]
        pub enum Response {
            $($name($module::$response),)*
        }

        impl Request {
            /// Decodes a request. Refuses an API or a version that is not served.
            pub fn decode(key: i16, version: i16, from: &mut Reader) -> engine::Result<Self> {
                let api = $crate::kafka::messages::served(key, version)?;
                let request = match key {
                    $($key => $module::$request::decode(version, from).map(Self::$name),)*
                    _ => Err(engine::Error::malformed("its messages have a separate codec")),
                };
                request.map_err(|e| $crate::kafka::messages::in_message(api, version, e))
            }

            pub fn encode(&self, version: i16, out: &mut bytes::BytesMut) {
                match self {
                    $(Self::$name(request) => request.encode(version, out),)*
                }
            }

            pub fn key(&self) -> i16 {
                match self {
                    $(Self::$name(_) => $key,)*
                }
            }

            /// Visits all names in the message, and removes elements of arrays whose name the visitor returns `false`
            /// for.
            pub fn names(&mut self, visit: &mut $crate::kafka::messages::Visit<'_>) {
                let none = $crate::kafka::messages::Entity::None;
                match self {
                    $(Self::$name(request) => drop(request.names(none, visit)),)*
                }
            }
        }

        impl Response {
            /// Decodes a response. Refuses an API or a version that is not served.
            pub fn decode(key: i16, version: i16, from: &mut Reader) -> engine::Result<Self> {
                let api = $crate::kafka::messages::served(key, version)?;
                let response = match key {
                    $($key => $module::$response::decode(version, from).map(Self::$name),)*
                    _ => Err(engine::Error::malformed("its messages have a separate codec")),
                };
                response.map_err(|e| $crate::kafka::messages::in_message(api, version, e))
            }

            pub fn encode(&self, version: i16, out: &mut bytes::BytesMut) {
                match self {
                    $(Self::$name(response) => response.encode(version, out),)*
                }
            }

            pub fn key(&self) -> i16 {
                match self {
                    $(Self::$name(_) => $key,)*
                }
            }

            /// Visits all names in the message, and removes elements of arrays whose name the visitor returns `false`
            /// for.
            pub fn names(&mut self, visit: &mut $crate::kafka::messages::Visit<'_>) {
                let none = $crate::kafka::messages::Entity::None;
                match self {
                    $(Self::$name(response) => drop(response.names(none, visit)),)*
                }
            }

            /// Sets the time in ms for which the client is delayed, if the response has a field for it.
            pub fn set_throttle_time(&mut self, ms: i32) {
                match self {
                    $(Self::$name(response) => response.set_throttle_time(ms),)*
                }
            }
        }

        #[cfg(test)]
        impl Request {
            pub fn samples(random: &mut $crate::kafka::messages::tests::Random) -> Vec<Self> {
                vec![$(Self::$name(random.any()),)*]
            }
        }

        #[cfg(test)]
        impl Response {
            pub fn samples(random: &mut $crate::kafka::messages::tests::Random) -> Vec<Self> {
                vec![$(Self::$name(random.any()),)*]
            }
        }
    };
}

pub(super) use {apis, message};
