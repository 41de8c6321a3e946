//! Columns of text, as wide as what is in them.

use std::io;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Colour;

/// Between two columns.
const BETWEEN: usize = 2;

/// Rows of cells under a heading.
pub(in crate::cli) struct Table {
    rows: Vec<Vec<(String, Colour)>>,
}

impl Table {
    pub(in crate::cli) fn new(heading: &[&str]) -> Table {
        Table { rows: vec![heading.iter().map(|word| ((*word).into(), Colour::Dim)).collect()] }
    }

    /// Adds a row. What terminals would obey in it is shown instead.
    pub(in crate::cli) fn row(&mut self, cells: Vec<(String, Colour)>) {
        let harmless = |(text, colour): (String, Colour)| (harmless(&text), colour);
        self.rows.push(cells.into_iter().map(harmless).collect());
    }

    /// Writes all to stdout, and cuts the last column where a terminal is not as wide.
    pub(in crate::cli) fn print_to_fit(mut self) -> io::Result<()> {
        if let Some(width) = super::width() {
            self.fit(width);
        }
        self.print()
    }

    /// Writes all to stdout.
    pub(in crate::cli) fn print(&self) -> io::Result<()> {
        let mut all = String::new();
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::new();
            let mut gap = 0;
            for ((text, colour), width) in row.iter().zip(&widths) {
                line.extend(std::iter::repeat_n(' ', gap));
                line.push_str(&colour.paint(text));
                gap = width - length(text) + BETWEEN;
            }
            all.push_str(line.trim_end());
            all.push('\n');
        }
        super::to_stdout(all.as_bytes())
    }

    /// Cuts the last column, so that no row is wider, if its heading can be.
    fn fit(&mut self, width: usize) {
        let widths = self.widths();
        let Some((_, before)) = widths.split_last() else { return };
        let room = width.saturating_sub(before.iter().map(|width| width + BETWEEN).sum());
        let least = self.rows[0].last().map_or(0, |(heading, _)| length(heading));
        let room = room.max(least);
        let full = self.rows.iter_mut().filter(|row| row.len() == widths.len());
        for (text, _) in full.filter_map(|row| row.last_mut()) {
            if length(text) > room {
                *text = cut(text, room.saturating_sub(1)) + "…";
            }
        }
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|(text, _)| length(text)).max().unwrap_or_default()
        };
        (0..columns).map(width).collect()
    }
}

/// How many columns a text takes: some letters take two.
fn length(text: &str) -> usize {
    text.width()
}

/// As much of a text as takes so many columns.
fn cut(text: &str, room: usize) -> String {
    let mut taken = 0;
    let fits = |c: &char| {
        taken += c.width().unwrap_or(0);
        taken <= room
    };
    text.chars().take_while(fits).collect()
}

/// Text in which nothing moves the cursor, reorders or hides other text, or does anything else than
/// to be seen.
pub(in crate::cli) fn harmless(text: &str) -> String {
    let is_obeyed = |c: char| c.is_control() || is_format(c);
    let shown = |c: char| if is_obeyed(c) { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Whether a character is not seen itself but changes how others are: directions of text, breaks of
/// lines, annotations, tags. Not the joiners, which letters and emoji are written with.
fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(&["ID", "STATE"]);
        table.row(vec![("longer".into(), Colour::Plain), ("x\x1b[2J".into(), Colour::Plain)]);
        assert_eq!(table.widths(), [6, 10]);
        assert_eq!(table.rows[1][1].0, "x\\u{1b}[2J");
    }

    #[test]
    fn characters_that_reorder_or_hide_text_are_escaped() {
        for hidden in ["\u{202e}", "\u{2066}", "\u{2069}", "\u{200e}", "\u{200f}", "\u{202a}"] {
            let shown = harmless(&format!("a{hidden}b"));
            assert_eq!(shown, format!("a{}b", hidden.escape_default()));
        }
        let words = "日本語 עברית می\u{200c}خواهم 👩\u{200d}💻";
        assert_eq!(harmless(words), words);
    }

    #[test]
    fn the_last_column_is_cut_where_the_terminal_ends() {
        let mut table = Table::new(&["ID", "COMMAND"]);
        table.row(vec![("a".into(), Colour::Plain), ("0123456789".into(), Colour::Plain)]);
        let cut = |table: &Table| table.rows[1][1].0.clone();
        table.fit(14);
        assert_eq!(cut(&table), "0123456789");
        table.fit(13);
        assert_eq!(cut(&table), "01234567…");
        table.fit(2);
        assert_eq!(cut(&table), "012345…");
        // Letters that take two columns.
        assert_eq!((length("日本語"), super::cut("日本語", 5)), (6, "日本".into()));
    }
}
