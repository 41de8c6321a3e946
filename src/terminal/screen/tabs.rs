//! Tab stops.

use crate::process::Size;

/// Columns from one stop to the next, unless others were set.
const USUAL: usize = 8;

/// The columns at which a tab stops, in terminals of every width.
pub(super) struct Tabs([bool; Size::MAX as usize]);

impl Default for Tabs {
    fn default() -> Tabs {
        Tabs(std::array::from_fn(|col| col % USUAL == 0))
    }
}

impl Tabs {
    /// The stop after a column, `count` times; the last column if there is none.
    pub(super) fn after(&self, col: u16, count: u16, cols: u16) -> u16 {
        let mut stops = (col + 1..cols).filter(|col| self.0[usize::from(*col)]);
        stops.nth(usize::from(count.saturating_sub(1))).unwrap_or(cols - 1)
    }

    /// The stop before a column, `count` times; the first column if there is none.
    pub(super) fn before(&self, col: u16, count: u16) -> u16 {
        let mut stops = (0..col).rev().filter(|col| self.0[usize::from(*col)]);
        stops.nth(usize::from(count.saturating_sub(1))).unwrap_or(0)
    }

    /// Sets or clears the stop at a column.
    pub(super) fn set(&mut self, col: u16, stop: bool) {
        if let Some(at) = self.0.get_mut(usize::from(col)) {
            *at = stop;
        }
    }

    /// Clears all stops.
    pub(super) fn clear(&mut self) {
        self.0.fill(false);
    }
}
