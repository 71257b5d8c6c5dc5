//! A strict reader of the OpenMetrics text format, as far as the controller uses it.

use std::collections::{BTreeMap, BTreeSet};

/// One figure: its name, its labels, its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// All figures.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) kinds: BTreeMap<String, String>,
    pub(crate) samples: Vec<Sample>,
}

impl Metrics {
    /// Those of a name, with their labels.
    pub(crate) fn all(&self, name: &str) -> Vec<&Sample> {
        self.samples.iter().filter(|sample| sample.name == name).collect()
    }

    /// The one of a name that has all these labels.
    pub(crate) fn one(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |sample: &&&Sample| {
            labels.iter().all(|(k, v)| sample.labels.get(*k).is_some_and(|value| value == v))
        };
        let all = self.all(name);
        let mut found = all.iter().filter(has);
        let one = found.next().map(|sample| sample.value);
        assert!(found.next().is_none(), "{name} {labels:?}: more than one");
        one
    }
}

/// Reads everything, or says what is wrong.
pub(crate) fn parse(text: &str) -> Result<Metrics, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("does not end with # EOF")?;
    let mut metrics = Metrics::default();
    let (mut current, mut over) = (String::new(), BTreeSet::new());
    let mut seen = BTreeSet::new();
    for line in body.lines() {
        let wrong = |what: &str| Err(format!("{what}: {line}"));
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (Some(word), Some(name), Some(value)) = (words.next(), words.next(), words.next())
            else {
                return wrong("a comment that is none");
            };
            if name != current {
                if !over.insert(name.to_owned()) {
                    return wrong("a family in two places");
                }
                current = name.to_owned();
            }
            match word {
                "TYPE" => {
                    let known = ["gauge", "counter", "histogram", "info"];
                    if !known.contains(&value) {
                        return wrong("an unknown type");
                    }
                    if metrics.kinds.insert(name.to_owned(), value.to_owned()).is_some() {
                        return wrong("two types");
                    }
                }
                "HELP" if !value.trim().is_empty() => {}
                "UNIT" if name.ends_with(&format!("_{value}")) => {}
                _ => return wrong("not HELP, TYPE or UNIT"),
            }
            continue;
        }
        let sample = sample(line)?;
        let kind = metrics.kinds.get(&current).ok_or(format!("no type: {line}"))?;
        let end = sample.name.strip_prefix(&current).ok_or(format!("of another family: {line}"))?;
        let fits = match kind.as_str() {
            "gauge" => end.is_empty(),
            "counter" => end == "_total",
            "info" => end == "_info",
            _ => matches!(end, "_bucket" | "_sum" | "_count"),
        };
        if !fits {
            return wrong("a name that does not fit its type");
        }
        if matches!(kind.as_str(), "counter" | "histogram")
            && (sample.value < 0.0 || sample.value.is_nan())
        {
            return wrong("a count below zero");
        }
        if !seen.insert(format!("{} {:?}", sample.name, sample.labels)) {
            return wrong("twice");
        }
        metrics.samples.push(sample);
    }
    for (name, kind) in metrics.kinds.clone() {
        if kind == "histogram" {
            histogram(&metrics, &name)?;
        }
    }
    Ok(metrics)
}

/// Buckets rise, and the last is the count.
fn histogram(metrics: &Metrics, name: &str) -> Result<(), String> {
    let buckets = metrics.all(&format!("{name}_bucket"));
    let bound = |sample: &&Sample| match sample.labels.get("le").map(String::as_str) {
        Some("+Inf") => Ok(f64::INFINITY),
        Some(bound) => bound.parse::<f64>().map_err(|_| format!("{name}: bound {bound}")),
        None => Err(format!("{name}: a bucket without a bound")),
    };
    let bounds: Vec<f64> = buckets.iter().map(bound).collect::<Result<_, _>>()?;
    let rises = bounds.is_sorted() && buckets.is_sorted_by(|a, b| a.value <= b.value);
    let count = metrics.one(&format!("{name}_count"), &[]);
    if !rises || bounds.last() != Some(&f64::INFINITY) || buckets.last().map(|b| b.value) != count {
        return Err(format!("{name}: buckets that do not add up"));
    }
    metrics.one(&format!("{name}_sum"), &[]).map(|_| ()).ok_or(format!("{name}: no sum"))
}

fn sample(line: &str) -> Result<Sample, String> {
    let wrong = |what: &str| format!("{what}: {line}");
    let end = line.find(['{', ' ']).ok_or_else(|| wrong("no value"))?;
    let (name, mut rest) = line.split_at(end);
    let plain = |text: &str| {
        let mut letters = text.chars();
        letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if !plain(name) {
        return Err(wrong("a name that is none"));
    }
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").ok_or_else(|| wrong("no label"))?;
            if !plain(label) {
                return Err(wrong("a label that is none"));
            }
            let mut value = String::new();
            let mut letters = after.char_indices();
            let close = loop {
                match letters.next().ok_or_else(|| wrong("a value without an end"))? {
                    (at, '"') => break at,
                    (_, '\\') => match letters.next() {
                        Some((_, 'n')) => value.push('\n'),
                        Some((_, c @ ('"' | '\\'))) => value.push(c),
                        _ => return Err(wrong("a bad escape")),
                    },
                    (_, c) => value.push(c),
                }
            };
            if labels.insert(label.to_owned(), value).is_some() {
                return Err(wrong("a label twice"));
            }
            rest = &after[close + 1..];
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').ok_or_else(|| wrong("no space before the value"))?;
    let value: f64 = value.parse().map_err(|_| wrong("a value that is no number"))?;
    if !value.is_finite() {
        return Err(wrong("a value without an end"));
    }
    Ok(Sample { name: name.to_owned(), labels, value })
}
