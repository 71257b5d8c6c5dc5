//! Constants of a policy that experiments can change by name.

/// A constant that can be multiplied: counts stay whole and positive, lists go entry by entry.
pub(crate) trait Scale: Sized {
    fn scaled(self, factor: f64) -> Self;
}

impl Scale for f64 {
    fn scaled(self, factor: f64) -> Self {
        self * factor
    }
}

impl Scale for usize {
    fn scaled(self, factor: f64) -> Self {
        (self as f64 * factor).round().max(1.0) as Self
    }
}

impl<const N: usize> Scale for [f64; N] {
    fn scaled(self, factor: f64) -> Self {
        self.map(|value| value * factor)
    }
}

/// A struct of parts (on) and constants (their defaults), all of them known by name.
macro_rules! tunable {
    (
        $vis:vis struct $tuning:ident;
        parts { $($(#[$about:meta])* $part:ident,)* }
        constants { $($(#[$reason:meta])* $name:ident: $kind:ty = $default:expr,)* }
    ) => {
        /// Parts that can be turned off, and constants.
        #[derive(Clone, Copy, Debug, PartialEq)]
        $vis struct $tuning {
            $($(#[$about])* pub(crate) $part: bool,)*
            $($(#[$reason])* pub(crate) $name: $kind,)*
        }

        impl Default for $tuning {
            fn default() -> Self {
                Self { $($part: true,)* $($name: $default,)* }
            }
        }

        impl $tuning {
            pub(crate) const PARTS: &[&str] = &[$(stringify!($part)),*];

            /// Names and values of all constants.
            pub(crate) fn constants(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($name), format!("{:?}", self.$name))),*]
            }

            /// Turns a part off; `None` if there is none of that name.
            pub(crate) fn turn_off(&mut self, part: &str) -> Option<()> {
                match part {
                    $(stringify!($part) => self.$part = false,)*
                    _ => return None,
                }
                Some(())
            }

            /// Multiplies a constant; `None` if there is none of that name.
            pub(crate) fn scale(&mut self, name: &str, factor: f64) -> Option<()> {
                match name {
                    $(stringify!($name) => self.$name = $crate::tunable::Scale::scaled(self.$name, factor),)*
                    _ => return None,
                }
                Some(())
            }
        }
    };
}

pub(crate) use tunable;
