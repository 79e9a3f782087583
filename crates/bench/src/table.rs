//! Tables of figures, for terminals and pages.

use std::fmt;

/// Placeholder for an unknown figure.
pub(crate) const NOT_KNOWN: &str = "-";

/// Table whose title is the heading of its row names.
pub struct Table {
    pub title: &'static str,
    pub columns: Vec<&'static str>,
    /// Name of each row and its cells.
    pub rows: Vec<(&'static str, Vec<String>)>,
}

pub(crate) fn fixed(value: Option<f64>, digits: usize) -> String {
    value.map_or(NOT_KNOWN.to_owned(), |value| format!("{value:.digits$}"))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.rows.iter().map(|(name, _)| name.len());
        let first = names.max().unwrap_or(0).max(self.title.len());
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|(_, cells)| Some(cells.get(column)?.len()));
            cells.max().unwrap_or(0).max(self.columns[column].len())
        };
        write!(f, "{:<first$}", self.title)?;
        for (column, name) in self.columns.iter().enumerate() {
            write!(f, "  {name:>0$}", width(column))?;
        }
        writeln!(f)?;
        for (name, cells) in &self.rows {
            write!(f, "{name:<first$}")?;
            for (column, cell) in cells.iter().enumerate() {
                write!(f, "  {cell:>0$}", width(column))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
