//! GPUs in SLURM's words for generic resources.
//!
//! The same thing is written `gres:gpu:h100:4`, `gres/gpu:4`, `gres/gpu:h100=4` or `gpu:4`, and
//! allocated ones `gpu:h100:2(IDX:0-1)`. Resources that are not GPUs are passed over.

use super::shown;

/// Nobody has more GPUs in a node; indices beyond are refused.
const MOST_GPUS: u32 = 1024;

/// How many GPUs, and of which type if one is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuCount {
    /// How many.
    pub count: u32,
    /// The type, where exactly one is named.
    pub gpu_type: Option<String>,
}

/// GPUs of one node that a job holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGpus {
    /// The node.
    pub node: String,
    /// How many of its GPUs.
    pub count: u32,
    /// The type, if named.
    pub gpu_type: Option<String>,
    /// Which ones, where SLURM says so; otherwise empty.
    pub indices: Vec<u32>,
}

/// One GPU entry of a list.
#[derive(Debug, PartialEq, Eq)]
struct Item<'a> {
    gpu_type: Option<&'a str>,
    count: u32,
    indices: Vec<u32>,
}

/// What a list of resources asks for or has; `None` if no GPU is in it.
pub(super) fn asked(text: &str) -> Result<Option<GpuCount>, String> {
    Ok(sum(&items(text)?))
}

/// What a list such as `cpu=4,gres/gpu=6,gres/gpu:h100=6` counts: the entry without a type is the
/// sum of those with one.
pub(super) fn tracked(text: &str) -> Result<Option<GpuCount>, String> {
    let items = items(text)?;
    let Some(mut total) = sum(&items) else { return Ok(None) };
    if let Some(untyped) = items.iter().find(|item| item.gpu_type.is_none()) {
        total.count = untyped.count;
    }
    Ok(Some(total))
}

/// Count, type and indices of the GPUs in a node's `gres_used` or a job's `gres_detail`.
pub(super) fn used(text: &str) -> Result<(GpuCount, Vec<u32>), String> {
    let items = items(text)?;
    let mut indices: Vec<u32> = items.iter().flat_map(|item| item.indices.clone()).collect();
    indices.sort_unstable();
    indices.dedup();
    Ok((sum(&items).unwrap_or_default(), indices))
}

fn sum(items: &[Item<'_>]) -> Option<GpuCount> {
    let mut types: Vec<&str> = items.iter().filter_map(|item| item.gpu_type).collect();
    types.sort_unstable();
    types.dedup();
    items.iter().map(|item| item.count).reduce(u32::saturating_add).map(|count| GpuCount {
        count,
        gpu_type: match types.as_slice() {
            [one] => Some((*one).to_owned()),
            _ => None,
        },
    })
}

fn items(text: &str) -> Result<Vec<Item<'_>>, String> {
    let text = text.trim();
    if matches!(text, "" | "(null)" | "N/A") {
        return Ok(Vec::new());
    }
    let mut items = Vec::new();
    for part in split(text)? {
        if let Some(item) = item(part).ok_or_else(|| format!("has '{}'", shown(part)))? {
            items.push(item);
        }
    }
    Ok(items)
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0_u32);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Err("has a ')' too many".into()),
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err("has a '(' too many".into());
    }
    parts.push(text.get(start..).unwrap_or_default());
    Ok(parts)
}

/// `None`: not understood. `Some(None)`: some other resource.
fn item(part: &str) -> Option<Option<Item<'_>>> {
    let (spec, notes) = match part.split_once('(') {
        Some((spec, notes)) => (spec, notes),
        None => (part, ""),
    };
    let spec = spec.strip_prefix("gres:").or_else(|| spec.strip_prefix("gres/")).unwrap_or(spec);
    let mut words = spec.split([':', '=']);
    if words.next() != Some("gpu") {
        return Some(None);
    }
    let words: Vec<&str> = words.collect();
    let (gpu_type, count) = match words.as_slice() {
        [] => (None, 1),
        [one] => match one.parse() {
            Ok(count) => (None, count),
            Err(_) => (Some(gpu_type(one)?), 1),
        },
        [kind, count] => (Some(gpu_type(kind)?), count.parse().ok()?),
        _ => return None,
    };
    Some(Some(Item { gpu_type, count, indices: indices(notes)? }))
}

fn gpu_type(word: &str) -> Option<&str> {
    let fine = !word.is_empty()
        && word.len() <= 128
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'));
    fine.then_some(word)
}

/// The indices in `IDX:0-2,5)`; other notes, such as the sockets in `S:0-1)`, say nothing here.
fn indices(notes: &str) -> Option<Vec<u32>> {
    let Some((_, list)) = notes.split_once("IDX:") else { return Some(Vec::new()) };
    let list = list.split([')', '(']).next().unwrap_or_default();
    if list == "N/A" || list.is_empty() {
        return Some(Vec::new());
    }
    let mut indices = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_GPUS {
            return None;
        }
        indices.extend(first..=last);
    }
    (indices.len() <= MOST_GPUS as usize).then_some(indices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(count: u32, gpu_type: &str) -> Option<GpuCount> {
        let gpu_type = (!gpu_type.is_empty()).then(|| gpu_type.to_owned());
        Some(GpuCount { count, gpu_type })
    }

    #[test]
    fn all_ways_to_ask() {
        for (text, expected) in [
            ("gres:gpu:4", gpus(4, "")),
            ("gres:gpu:h100:4", gpus(4, "h100")),
            ("gres/gpu:4", gpus(4, "")),
            ("gres/gpu=4", gpus(4, "")),
            ("gres/gpu:h100:4", gpus(4, "h100")),
            ("gres/gpu:h100=4", gpus(4, "h100")),
            ("gpu:4", gpus(4, "")),
            ("gpu:a100", gpus(1, "a100")),
            ("gres:gpu", gpus(1, "")),
            ("gres:gpu:2,gres:gpu:4", gpus(6, "")),
            ("gres:gpu:a:1,gres:gpu:b:2", gpus(3, "")),
            ("gpu:h100:8(S:0-1)", gpus(8, "h100")),
            ("license:x:2,gres:gpu:1", gpus(1, "")),
            ("gres:mps:100", None),
            ("cpu=4,mem=2000M,node=2", None),
            ("", None),
            ("(null)", None),
        ] {
            assert_eq!(asked(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn counts_of_tracked_resources_are_not_added_twice() {
        let text = "cpu=4,mem=2000M,node=2,billing=4,gres/gpu=6,gres/gpu:h100=6";
        assert_eq!(tracked(text), Ok(gpus(6, "h100")));
        assert_eq!(tracked("gres/gpu:a=1,gres/gpu:b=2,gres/gpu=3"), Ok(gpus(3, "")));
        assert_eq!(tracked("gres/gpu:a=1,gres/gpu:a100=2"), Ok(gpus(3, "")));
        assert_eq!(tracked("cpu=4"), Ok(None));
    }

    #[test]
    fn which_ones_are_used() {
        let of = |text| used(text).map(|(count, indices)| (count.count, indices));
        assert_eq!(of("gpu:h100:3(IDX:0-2)"), Ok((3, vec![0, 1, 2])));
        assert_eq!(of("gpu:h100:3(IDX:0,2-3)"), Ok((3, vec![0, 2, 3])));
        assert_eq!(of("gpu:a:1(IDX:1),gpu:b:1(IDX:0)"), Ok((2, vec![0, 1])));
        assert_eq!(of("gpu:h100:0(IDX:N/A)"), Ok((0, vec![])));
        assert_eq!(of("gpu:4"), Ok((4, vec![])));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for text in [
            "gpu:a:b",
            "gpu:a:1:2",
            "gpu:h100:3(IDX:2-0)",
            "gpu:1(IDX:0-99999999)",
            "gpu:-1x",
            "gpu:1(",
            "gpu:1)",
            "gpu:99999999999999",
            "gpu:1(IDX:x)",
            "gpu:<b>:1",
            "gpu:1k",
        ] {
            let read = used(text);
            // A word that is no number is a type.
            assert!(
                read.is_err() || matches!(text, "gpu:-1x" | "gpu:99999999999999" | "gpu:1k"),
                "{text}: {read:?}"
            );
        }
        assert!(used("gpu:h100:4k").is_err());
    }
}
