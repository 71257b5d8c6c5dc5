//! A folder of ANDREAS instances with what other methods reach on them.
//!
//! `reference.csv` has the columns `instance,load,method,total_eur` (others are ignored): one row
//! for each instance and method. Each instance is a folder of that name beside it.

use super::{AndreasError, each_row, once};
use crate::trace::value;
use std::collections::BTreeMap;
use std::path::Path;

/// What other methods reach on one instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The instance, and its folder.
    pub instance: String,
    /// GPU-seconds asked for over GPU-seconds there, as the file says.
    pub load: f64,
    /// Total cost in EUR of each method, by its name there.
    pub methods: BTreeMap<Box<str>, f64>,
}

impl Reference {
    /// The cheapest method and what it costs.
    #[must_use]
    pub fn best(&self) -> Option<(&str, f64)> {
        let methods = self.methods.iter().map(|(name, cost)| (&**name, *cost));
        methods.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The name without the number of nodes (`n20-`) and the seed (`-s0`): instances that have the
    /// same one differ in size and luck only.
    #[must_use]
    pub fn family(&self) -> &str {
        let name = self.instance.as_str();
        let name = match name.split_once('-') {
            Some((size, rest)) if numbered(size, 'n') => rest,
            _ => name,
        };
        match name.rsplit_once('-') {
            Some((rest, seed)) if numbered(seed, 's') => rest,
            _ => name,
        }
    }
}

/// A letter and a number.
fn numbered(text: &str, letter: char) -> bool {
    let digits = text.strip_prefix(letter).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Reads `reference.csv` in `folder`; instances in the order of their names.
///
/// # Errors
/// Names file, line and field.
pub fn read(folder: &Path) -> Result<Vec<Reference>, AndreasError> {
    let mut all: BTreeMap<Box<str>, Reference> = BTreeMap::new();
    let names = ["instance", "load", "method", "total_eur"];
    each_row(folder, "reference.csv", names, |row, [instance, load, method, total]| {
        let (name, method) = (row.name(instance)?, row.name(method)?);
        let load = row.value(load, super::positive)?;
        let total = row.value(total, value::amount)?;
        let shown = format!("{name}, {method}");
        let entry = all.entry(name.clone()).or_insert_with(|| Reference {
            instance: name.into(),
            load,
            methods: BTreeMap::new(),
        });
        once(entry.methods.insert(method, total), row, shown)
    })?;
    Ok(all.into_values().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    fn parse(rows: &str) -> Result<Vec<Reference>, AndreasError> {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("instance,nodes,load,method,total_eur\n{rows}");
        fs::write(folder.path().join("reference.csv"), text).unwrap();
        read(folder.path())
    }

    #[test]
    fn the_cheapest_method_is_found() {
        let all = parse("n2-l5-s0,2,0.5,A,3\nn2-l5-s0,2,0.5,B,2\nodd,2,1,A,7\n").unwrap();
        assert_eq!(all[0].best(), Some(("B", 2.0)));
        assert_eq!((all[0].family(), all[1].family()), ("l5", "odd"));
    }

    #[test]
    fn wrong_rows_are_named() {
        let twice = parse("a,2,1,A,3\na,2,1,A,3\n").unwrap_err().to_string();
        assert!(twice.contains("reference.csv:3"), "{twice}");
        let cost = parse("a,2,1,A,cheap\n").unwrap_err().to_string();
        assert!(cost.contains("total_eur"), "{cost}");
    }
}
