//! Values of JSON bodies that are bounded while they are decoded.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// First elements of a list, up to a maximum, and the number of all elements. The others are only counted.
pub(super) struct Few<T, const MAX: usize> {
    pub first: Vec<T>,
    pub count: usize,
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
            type Value = Few<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T, MAX>, A::Error> {
                let mut first = Vec::new();
                while first.len() < MAX
                    && let Some(element) = list.next_element()?
                {
                    first.push(element);
                }
                let mut count = first.len();
                while count >= MAX && list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Few { first, count })
            }
        }

        deserializer.deserialize_seq(List(PhantomData))
    }
}

/// Settings by name, in the order of the body: at most [`NAMED_MAX`], none of which is a list or an object.
pub(super) struct Named(pub Vec<(String, Value)>);

/// Maximum number of settings in one request. No resource has more than half of them.
const NAMED_MAX: usize = 64;

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of settings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named, A::Error> {
                let mut named = Vec::new();
                while let Some((name, Scalar(value))) = map.next_entry()? {
                    if named.len() == NAMED_MAX {
                        return Err(A::Error::custom(format!("there are more than {NAMED_MAX} settings")));
                    }
                    named.push((name, value));
                }
                Ok(Named(named))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// Value of a setting.
struct Scalar(Value);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;

        impl Visitor<'_> for One {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a text, true, false or null")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(value.into()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(value.into()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(value.into()))
            }

            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar(value.into()))
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar(Value::Null))
            }
        }

        deserializer.deserialize_any(One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_few_and_simple() {
        let read = |json: &str| serde_json::from_str::<Named>(json).map(|Named(named)| named);
        let all = read(r#"{"a":1,"b":-1,"c":1.5,"d":true,"e":null,"f":"x\u00e4","a":2}"#).expect("settings");
        let values: Vec<(&str, String)> = all.iter().map(|(name, value)| (&name[..], value.to_string())).collect();
        let expected =
            [("a", "1"), ("b", "-1"), ("c", "1.5"), ("d", "true"), ("e", "null"), ("f", r#""xä""#), ("a", "2")];
        assert_eq!(values, expected.map(|(name, value)| (name, value.to_owned())));
        let of = |count: usize| {
            let settings: Vec<String> = (0..count).map(|i| format!(r#""{i}":0"#)).collect();
            read(&format!("{{{}}}", settings.join(",")))
        };
        assert!(of(NAMED_MAX).is_ok());
        assert!(of(NAMED_MAX + 1).is_err_and(|error| error.to_string().contains("more than 64 settings")));
        for nested in [r#"{"a":[]}"#, r#"{"a":{}}"#, "[]", "7"] {
            assert!(read(nested).is_err(), "{nested}");
        }
    }

    #[test]
    fn elements_beyond_the_maximum_are_only_counted() {
        let read = |json: &str| serde_json::from_str::<Few<u8, 2>>(json).map(|few| (few.first, few.count));
        assert_eq!(read("[]").expect("a list"), (vec![], 0));
        assert_eq!(read("[1,2]").expect("a list"), (vec![1, 2], 2));
        assert_eq!(read(r#"[1,2,{"a":[]},"x"]"#).expect("a list"), (vec![1, 2], 4));
        assert!(read("[1,300]").is_err());
    }
}
