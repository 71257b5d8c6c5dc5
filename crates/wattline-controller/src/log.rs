//! What goes into the daemon's log, made harmless for whoever reads it.

/// Text from outside (job names, what commands said): no control characters, and none that hide or
/// turn text around.
#[must_use]
pub fn harmless(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    text.chars()
        .flat_map(
            |c| {
                if c.is_control() || turns(c) { c.escape_default().collect() } else { vec![c] }
            },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_a_cursor_or_turns_text_around() {
        assert_eq!(harmless("a\x1b[31m\nb\u{202e}c\u{0}"), "a\\u{1b}[31m\\nb\\u{202e}c\\u{0}");
        assert_eq!(harmless("trän <b> 模型"), "trän <b> 模型");
    }
}
