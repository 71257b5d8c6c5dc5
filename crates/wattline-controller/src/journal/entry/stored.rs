//! Conversions between what the engine uses and what is written, both ways and without loss.

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::ids::{ActionId, GpuTypeId, JobId, NodeId, PlanId, UserId, WorkloadId};
use wattline_core::job::Work;
use wattline_core::placement::{Allocation, Share as CoreShare};
use wattline_core::units::{
    CarbonIntensity, CarbonPrice, EnergyPrice, Euros, EurosPerSecond, Joules, Seconds, Watts,
};

/// How a `C` of the program is written.
pub(super) trait Stored<C> {
    fn store(value: &C) -> Self;
    fn load(self) -> C;
}

/// A number that is read back exactly. JSON has no infinity and no NaN: they are written as text,
/// because an entry that was acknowledged must be readable whatever a measurement said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else {
            serializer.collect_str(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UnitVisitor(PhantomData)).map(Self)
    }
}

/// Reads a number, or text.
struct UnitVisitor<Q>(PhantomData<Q>);

impl<Q: Unit> Visitor<'_> for UnitVisitor<Q> {
    type Value = Q;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or \"inf\", \"-inf\" or \"NaN\"")
    }
    fn visit_f64<E: Error>(self, number: f64) -> Result<Q, E> {
        Ok(Q::from_base_unit(number))
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<Q, E> {
        self.visit_f64(number as f64)
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<Q, E> {
        self.visit_f64(number as f64)
    }
    /// What format 1 wrote for a number that is none.
    fn visit_unit<E: Error>(self) -> Result<Q, E> {
        self.visit_f64(f64::NAN)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Q, E> {
        match text {
            "inf" => self.visit_f64(f64::INFINITY),
            "-inf" => self.visit_f64(f64::NEG_INFINITY),
            "NaN" => self.visit_f64(f64::NAN),
            other => {
                Q::with_unit(other).ok_or_else(|| E::invalid_value(Unexpected::Str(other), &self))
            }
        }
    }
}

/// What is written as it is.
macro_rules! as_it_is {
    ($($type:ty),*) => {$(
        impl Stored<$type> for $type {
            fn store(value: &$type) -> Self {
                value.clone()
            }
            fn load(self) -> $type {
                self
            }
        }
    )*};
}
as_it_is!(bool, u32, u64, i64, Box<str>, String);

/// Identifiers, by their numbers.
macro_rules! ids {
    ($($id:ident: $number:ty),*) => {$(
        impl Stored<$id> for $number {
            fn store(value: &$id) -> Self {
                value.0
            }
            fn load(self) -> $id {
                $id(self)
            }
        }
    )*};
}
ids!(JobId: u32, NodeId: u32, UserId: u32, WorkloadId: u32, GpuTypeId: u16, ActionId: u64, PlanId: u64);

/// A quantity, in its base unit: W, J, s, EUR, EUR/s, EUR/J, g/J, EUR/g. Format 1 wrote text with
/// units ("400 W"), which is read too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantity<Q>(Q);

trait Unit: Copy {
    fn in_base_unit(self) -> f64;
    fn from_base_unit(number: f64) -> Self;
    /// From the text that format 1 wrote.
    fn with_unit(text: &str) -> Option<Self>;
}

impl Unit for f64 {
    fn in_base_unit(self) -> f64 {
        self
    }
    fn from_base_unit(number: f64) -> Self {
        number
    }
    fn with_unit(_: &str) -> Option<Self> {
        None
    }
}

macro_rules! units {
    ($($quantity:ident),*) => {$(
        impl Unit for $quantity {
            fn in_base_unit(self) -> f64 {
                self.get()
            }
            fn from_base_unit(number: f64) -> Self {
                Self::new(number)
            }
            fn with_unit(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
        impl Stored<$quantity> for Quantity<$quantity> {
            fn store(value: &$quantity) -> Self {
                Self(*value)
            }
            fn load(self) -> $quantity {
                self.0
            }
        }
        impl<'de> Deserialize<'de> for Quantity<$quantity> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(UnitVisitor(PhantomData)).map(Self)
            }
        }
        impl Serialize for Quantity<$quantity> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Number(self.0.in_base_unit()).serialize(serializer)
            }
        }
    )*};
}
units!(Watts, Joules, Seconds, Euros, EurosPerSecond, EnergyPrice, CarbonIntensity, CarbonPrice);

impl Stored<f64> for Number {
    fn store(value: &f64) -> Self {
        Self(*value)
    }
    fn load(self) -> f64 {
        self.0
    }
}

impl Stored<Work> for Number {
    fn store(value: &Work) -> Self {
        Self(value.0)
    }
    fn load(self) -> Work {
        Work(self.0)
    }
}

/// Microseconds.
impl Stored<Timestamp> for i64 {
    fn store(value: &Timestamp) -> Self {
        value.micros()
    }
    fn load(self) -> Timestamp {
        Timestamp::from_micros(self)
    }
}

impl<C, T: Stored<C>> Stored<Option<C>> for Option<T> {
    fn store(value: &Option<C>) -> Self {
        value.as_ref().map(T::store)
    }
    fn load(self) -> Option<C> {
        self.map(T::load)
    }
}

impl<C, T: Stored<C>> Stored<Vec<C>> for Vec<T> {
    fn store(value: &Vec<C>) -> Self {
        value.iter().map(T::store).collect()
    }
    fn load(self) -> Vec<C> {
        self.into_iter().map(T::load).collect()
    }
}

impl<C, T: Stored<C>> Stored<Box<[C]>> for Vec<T> {
    fn store(value: &Box<[C]>) -> Self {
        value.iter().map(T::store).collect()
    }
    fn load(self) -> Box<[C]> {
        self.into_iter().map(T::load).collect()
    }
}

impl<C, T: Stored<C>> Stored<Arc<[C]>> for Vec<T> {
    fn store(value: &Arc<[C]>) -> Self {
        value.iter().map(T::store).collect()
    }
    fn load(self) -> Arc<[C]> {
        self.into_iter().map(T::load).collect()
    }
}

impl<C, T: Stored<C>> Stored<Arc<C>> for T {
    fn store(value: &Arc<C>) -> Self {
        T::store(value)
    }
    fn load(self) -> Arc<C> {
        Arc::new(T::load(self))
    }
}

impl<T: Stored<CoreShare>> Stored<Allocation> for Vec<T> {
    fn store(value: &Allocation) -> Self {
        value.0.iter().map(T::store).collect()
    }
    fn load(self) -> Allocation {
        Allocation(self.into_iter().map(T::load).collect())
    }
}

/// Declares a type of the file after one of the program, with the same fields or variants, and both
/// conversions. A field or variant that is new in the program does not compile until somebody has
/// said how it is written.
macro_rules! stored {
    ($(#[$meta:meta])* struct $name:ident of $core:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)?
    }) => {
        #[derive(Serialize, Deserialize)]
        $(#[$meta])*
        pub(super) struct $name {
            $($(#[$field_meta])* $field: $type,)*
        }
        impl Stored<$core> for $name {
            fn store(value: &$core) -> Self {
                let $core { $($field),* } = value;
                Self { $($field: <$type>::store($field)),* }
            }
            fn load(self) -> $core {
                let Self { $($field),* } = self;
                $core { $($field: $field.load()),* }
            }
        }
    };
    ($(#[$meta:meta])* enum $name:ident of $core:ident {
        $($variant:ident $(($type:ty))? $({
            $($(#[$field_meta:meta])* $field:ident: $field_type:ty),* $(,)?
        })?),* $(,)?
    }) => {
        #[derive(Serialize, Deserialize)]
        $(#[$meta])*
        pub(super) enum $name {
            $($variant $(($type))? $({ $($(#[$field_meta])* $field: $field_type),* })?,)*
        }
        impl Stored<$core> for $name {
            fn store(value: &$core) -> Self {
                match value {
                    $($core::$variant $((stored!(@inner $type, inner)))? $({ $($field),* })? =>
                        Self::$variant $((<$type>::store(inner)))?
                            $({ $($field: <$field_type>::store($field)),* })?,)*
                }
            }
            fn load(self) -> $core {
                match self {
                    $(Self::$variant $((stored!(@inner $type, inner)))? $({ $($field),* })? =>
                        $core::$variant $((<$type as Stored<_>>::load(inner)))?
                            $({ $($field: $field.load()),* })?,)*
                }
            }
        }
    };
    (@inner $type:ty, $inner:ident) => { $inner };
}
pub(super) use stored;
