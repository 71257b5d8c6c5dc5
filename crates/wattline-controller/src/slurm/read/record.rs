//! One entry of a list with only the fields that are wanted, and typed access to them.

use super::{ReadError, shown};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt;
use std::marker::PhantomData;
use wattline_core::time::Timestamp;

/// Which fields of an entry are looked at.
pub(super) trait Wanted {
    /// Their names.
    const FIELDS: &'static [&'static str];
}

/// A whole answer.
#[derive(Deserialize)]
#[serde(bound(deserialize = "W: Wanted"))]
pub(super) struct Document<W> {
    #[serde(default)]
    pub(super) errors: Option<Value>,
    #[serde(default = "none")]
    pub(super) jobs: Option<Vec<Record<W>>>,
    #[serde(default = "none")]
    pub(super) nodes: Option<Vec<Record<W>>>,
    #[serde(default)]
    pub(super) sinfo: Option<IgnoredAny>,
}

fn none<T>() -> Option<T> {
    None
}

/// What SLURM says went wrong, if anything. What is no list counts as an error: it says something.
pub(super) fn reported(errors: Option<&Value>) -> Option<String> {
    match errors {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) if list.is_empty() => None,
        Some(other) => Some(shown_whole(&other.to_string())),
    }
}

fn shown_whole(text: &str) -> String {
    const MOST: usize = 500;
    let head: String = text.chars().take(MOST).filter(|c| !c.is_control()).collect();
    if text.chars().nth(MOST).is_some() { format!("{head}…") } else { head }
}

/// The wanted fields of one entry.
pub(super) struct Record<W> {
    fields: Vec<(&'static str, Value)>,
    wanted: PhantomData<W>,
}

impl<'de, W: Wanted> Deserialize<'de> for Record<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entry<W>(PhantomData<W>);
        impl<'de, W: Wanted> Visitor<'de> for Entry<W> {
            type Value = Record<W>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Record<W>, A::Error> {
                let mut fields: Vec<(&'static str, Value)> = Vec::with_capacity(W::FIELDS.len());
                while let Some(key) = map.next_key::<String>()? {
                    let Some(name) = W::FIELDS.iter().find(|name| **name == key) else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    if fields.iter().any(|(seen, _)| seen == name) {
                        return Err(A::Error::duplicate_field(name));
                    }
                    fields.push((name, map.next_value()?));
                }
                Ok(Record { fields, wanted: PhantomData })
            }
        }
        deserializer.deserialize_map(Entry(PhantomData))
    }
}

impl<W: Wanted> Record<W> {
    /// The fields under the name that messages call the entry.
    pub(super) fn of<'a>(&'a self, owner: &'a str) -> Fields<'a> {
        Fields { fields: &self.fields, owner }
    }
}

/// Fields of one entry, and whose they are.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    fields: &'a [(&'static str, Value)],
    pub(super) owner: &'a str,
}

/// A number that may be unset or without limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Unset,
    Infinite,
    Is(i64),
}

impl<'a> Fields<'a> {
    pub(super) fn error(&self, field: &'static str, why: impl Into<String>) -> ReadError {
        ReadError::Field { owner: self.owner.to_owned(), field, why: why.into() }
    }

    fn odd(&self, field: &'static str, expected: &str, value: &Value) -> ReadError {
        self.error(field, format!("is '{}', expected {expected}", shown(&value.to_string())))
    }

    /// The field, unless it is not there or null.
    pub(super) fn get(&self, field: &'static str) -> Option<&'a Value> {
        let (_, value) = self.fields.iter().find(|(name, _)| *name == field)?;
        if value.is_null() { None } else { Some(value) }
    }

    /// Empty if not there.
    pub(super) fn text(&self, field: &'static str) -> Result<&'a str, ReadError> {
        match self.get(field) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(self.odd(field, "a text", other)),
        }
    }

    /// A text, or nothing where it is empty.
    pub(super) fn owned(&self, field: &'static str) -> Result<Option<String>, ReadError> {
        let text = self.text(field)?;
        Ok(if text.is_empty() { None } else { Some(text.to_owned()) })
    }

    /// A text that must be there and say something.
    pub(super) fn needed_text(&self, field: &'static str) -> Result<&'a str, ReadError> {
        match self.text(field)? {
            "" => Err(self.error(field, "is missing")),
            text => Ok(text),
        }
    }

    /// A list of texts, or one text with commas as older versions print it.
    pub(super) fn texts(&self, field: &'static str) -> Result<Vec<String>, ReadError> {
        match self.get(field) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => {
                Ok(text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect())
            }
            Some(Value::Array(list)) => list
                .iter()
                .map(|value| match value {
                    Value::String(text) => Ok(text.clone()),
                    other => Err(self.odd(field, "a list of texts", other)),
                })
                .collect(),
            Some(other) => Err(self.odd(field, "a list of texts", other)),
        }
    }

    /// False if not there. Some versions print a list of words instead.
    pub(super) fn flag(&self, field: &'static str) -> Result<Option<bool>, ReadError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Bool(set)) => Ok(Some(*set)),
            Some(Value::Number(number)) => Ok(Some(number.as_i64() != Some(0))),
            Some(other) => Err(self.odd(field, "true or false", other)),
        }
    }

    /// A number in any of SLURM's forms: plain, null, or `{set, infinite, number}`.
    pub(super) fn number(&self, field: &'static str) -> Result<Number, ReadError> {
        const EXPECTED: &str = "a whole number";
        let Some(value) = self.get(field) else { return Ok(Number::Unset) };
        number(value).ok_or_else(|| self.odd(field, EXPECTED, value))
    }

    /// A number that is not negative; unset and unlimited are both "not given".
    pub(super) fn count(&self, field: &'static str) -> Result<Option<u64>, ReadError> {
        match self.number(field)? {
            Number::Unset | Number::Infinite => Ok(None),
            Number::Is(number) => match u64::try_from(number) {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.error(field, format!("is {number}, it cannot be negative"))),
            },
        }
    }

    /// A count that fits 32 bits.
    pub(super) fn count32(&self, field: &'static str) -> Result<Option<u32>, ReadError> {
        self.count(field)?
            .map(|n| {
                u32::try_from(n)
                    .map_err(|_| self.error(field, format!("is {n}, which is too large")))
            })
            .transpose()
    }

    /// A number that must be there.
    pub(super) fn needed_count32(&self, field: &'static str) -> Result<u32, ReadError> {
        self.count32(field)?.ok_or_else(|| self.error(field, "is missing or not set"))
    }

    /// Seconds since the epoch; 0 stands for "not yet".
    pub(super) fn time(&self, field: &'static str) -> Result<Option<Timestamp>, ReadError> {
        match self.number(field)? {
            Number::Unset | Number::Infinite | Number::Is(0) => Ok(None),
            Number::Is(seconds) => {
                Ok(Some(Timestamp::from_micros(seconds.saturating_mul(1_000_000))))
            }
        }
    }
}

pub(super) fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Null => Some(Number::Unset),
        Value::Number(n) => {
            if let Some(n) = n.as_i64() {
                return Some(Number::Is(n));
            }
            let float = n.as_f64()?;
            // Beyond 2^53 a float is no longer a number that someone meant exactly.
            (float.fract() == 0.0 && float.abs() < 9.0e15).then_some(Number::Is(float as i64))
        }
        Value::Object(object) => {
            let said = |key| match object.get(key) {
                None => Some(false),
                Some(Value::Bool(said)) => Some(*said),
                Some(_) => None,
            };
            if said("infinite")? {
                return Some(Number::Infinite);
            }
            // Some printers leave `set` out when there is a number.
            if !said("set")? && object.contains_key("set") {
                return Some(Number::Unset);
            }
            match object.get("number")? {
                plain @ Value::Number(_) => number(plain),
                _ => None,
            }
        }
        _ => None,
    }
}
