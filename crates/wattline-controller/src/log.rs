//! What goes into the daemon's log, made harmless for whoever reads it.

use regex::Regex;
use std::sync::LazyLock;

/// Characters that cannot be seen, or that change how others are shown: controls, formats (among
/// them those that turn text around, and tags), private ones, separators of lines and
/// paragraphs, and all that Unicode says are ignored where they cannot be shown, such as fillers
/// and variation selectors.
static HIDDEN: LazyLock<Regex> = LazyLock::new(|| {
    let classes =
        r"[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\p{Bidi_Control}]";
    Regex::new(classes).unwrap_or_else(|error| unreachable!("the classes exist: {error}"))
});

/// The first character of a text that cannot be seen, or that changes how others are shown.
#[must_use]
pub fn hidden(text: &str) -> Option<char> {
    // Most text has none, and needs no table to know.
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return None;
    }
    HIDDEN.find(text).and_then(|found| found.as_str().chars().next())
}

/// Text from outside (job names, what commands said): no control characters, and none that hide or
/// turn text around.
#[must_use]
pub fn harmless(text: &str) -> String {
    if hidden(text).is_none() {
        return text.to_owned();
    }
    let escape = |found: &regex::Captures<'_>| found[0].escape_default().to_string();
    HIDDEN.replace_all(text, escape).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_a_cursor_or_turns_text_around() {
        assert_eq!(harmless("a\x1b[31m\nb\u{202e}c\u{0}"), "a\\u{1b}[31m\\nb\\u{202e}c\\u{0}");
        assert_eq!(harmless("trän <b> 模型"), "trän <b> 模型");
    }

    #[test]
    fn all_characters_that_hide_are_found() {
        for c in [
            '\u{7f}',
            '\u{85}',
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{115f}',
            '\u{180e}',
            '\u{200d}',
            '\u{2028}',
            '\u{202e}',
            '\u{2066}',
            '\u{3164}',
            '\u{e000}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{e0001}',
            '\u{e0041}',
            '\u{e0100}',
        ] {
            assert_eq!(hidden(&format!("a{c}b")), Some(c), "{}", c.escape_unicode());
        }
        for text in ["llama-3 (8B) ~!", "обучение", "模型 訓練", "ن", "한국어", "naïve é", "🚀"]
        {
            assert_eq!(hidden(text), None, "{text}");
        }
    }
}
