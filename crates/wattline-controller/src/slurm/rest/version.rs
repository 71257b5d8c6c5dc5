//! Versions of slurmrestd's interface.

use std::fmt;

/// The oldest one that is understood: SLURM 22.05.
const OLDEST: u16 = 38;
/// The newest one that is known: SLURM 26.05. A newer one is not tried: what it would make of a
/// change is not known.
const NEWEST: u16 = 45;

/// One of them: `v0.0.38`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u16);

impl Version {
    /// SLURM 22.05.
    pub(super) const V38: Self = Self(38);
    /// SLURM 23.02: nodes can be changed, and fields of jobs have other names.
    pub(super) const V39: Self = Self(39);
    /// SLURM 23.11: numbers may be unset, and signals can go to the batch script alone.
    pub(super) const V40: Self = Self(40);

    /// From `v0.0.38`, or without the `v`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.strip_prefix('v').unwrap_or(text).strip_prefix("0.0.")?;
        let number: u16 = number.parse().ok()?;
        (OLDEST..=NEWEST).contains(&number).then_some(Self(number))
    }

    /// All that are known, as people read it.
    #[must_use]
    pub fn known() -> String {
        format!("v0.0.{OLDEST} to v0.0.{NEWEST}")
    }

    /// The newest known one that a description of the interface (`/openapi`) has paths of.
    pub(super) fn newest_in(openapi: &str) -> Option<Self> {
        let versions = openapi.split("slurm").filter_map(|part| {
            // Slashes may be escaped.
            let part = part.strip_prefix("\\/").or_else(|| part.strip_prefix('/'))?;
            let end = part.find(['/', '\\', '"'])?;
            Self::parse(part.get(..end)?)
        });
        versions.max()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v0.0.{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_known_version_is_found() {
        assert_eq!(Version::parse("v0.0.38"), Some(Version::V38));
        assert_eq!(Version::parse("0.0.45").map(|v| v.to_string()), Some("v0.0.45".into()));
        for text in ["", "v0.0.37", "v0.0.46", "v0.1.40", "v0.0.", "v0.0.+40x", "38"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        let escaped = r#"{"paths":{"\/slurm\/v0.0.38\/diag":{},"\/slurm\/v0.0.37\/jobs":{}}}"#;
        assert_eq!(Version::newest_in(escaped), Some(Version::V38));
        let plain = r#"{"paths":{"/slurm/v0.0.40/diag":{},"/slurm/v0.0.39/jobs":{},
            "/slurmdb/v0.0.42/jobs":{},"/slurm/v0.0.99/jobs":{}}}"#;
        assert_eq!(Version::newest_in(plain), Some(Version::V40));
        assert_eq!(Version::newest_in("{}"), None);
    }
}
