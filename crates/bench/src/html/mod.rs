//! Reports as one self-contained HTML page: without scripts, and without external fonts or images.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

pub use console::plot::{Axis, Line, Plot, Stroke};
pub(crate) use console::units;

use console::text::escape;
use console::units::format_time;

use crate::machine::{Host, LoadAverage, Program, governor};
use crate::table::Table;

/// Maximum number of columns of a table that has another table next to it.
const COLUMNS_BESIDE_MAX: usize = 7;
const STYLE: &str = include_str!("style.css");

/// Page with the conditions of the measurements, and a section for each run.
pub struct Page {
    pub title: String,
    pub sections: Vec<Section>,
    facts: Vec<(&'static str, String)>,
}

/// Section of one run.
#[derive(Default)]
pub struct Section {
    pub title: String,
    /// Workload in one line.
    pub shape: String,
    /// `true` if the run is valid; `verdict` states the reason.
    pub is_whole: bool,
    pub verdict: String,
    /// Most important figures, with their descriptions.
    pub tiles: Vec<(String, String)>,
    /// Rows of two or three plots.
    pub plots: Vec<Vec<Plot>>,
    pub tables: Vec<Table>,
    pub notes: Vec<String>,
}

impl Page {
    /// Creates a page. `load` contains the load averages before and after the measurement.
    pub fn new(title: &str, host: &Host, program: &Program, load: [LoadAverage; 2]) -> Self {
        let average = |load: LoadAverage| load.0.map(|one| format!("{one:.2}")).join(", ");
        let facts = vec![
            ("Command", program.command.clone()),
            ("Machine", format!("{} x {}, governor {}", host.cores, host.cpu, governor())),
            ("Kernel", format!("Linux {}", host.kernel)),
            ("Load average", format!("{} before, {} after (1, 5, 15 minutes)", average(load[0]), average(load[1]))),
            ("Program", format!("{}, {}", program.client, program.allocator)),
            ("Commit", program.commit.clone()),
            ("Written", format_time(now_ms())),
        ];
        Self { title: title.to_owned(), sections: Vec::new(), facts }
    }

    pub fn render(&self) -> String {
        let title = escape(&self.title);
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
             <dl class=\"facts\">\n"
        );
        for (name, value) in &self.facts {
            let class = if *name == "Command" { " class=\"code\"" } else { "" };
            let _infallible = writeln!(out, "<dt>{name}</dt><dd{class}>{}</dd>", escape(value));
        }
        out.push_str("</dl>\n");
        for section in &self.sections {
            section.render(&mut out);
        }
        out.push_str("</body>\n</html>\n");
        out
    }
}

impl Section {
    fn render(&self, out: &mut String) {
        let class = if self.is_whole { "verdict" } else { "verdict bad" };
        let title = escape(&self.title);
        let shape = escape(&self.shape);
        let verdict = escape(&self.verdict);
        let _infallible = write!(
            out,
            "<section>\n<h2>{title}</h2>\n<p class=\"muted\">{shape}</p>\n<p class=\"{class}\">{verdict}</p>\n\
             <div class=\"tiles\">"
        );
        for (value, what) in &self.tiles {
            let value = escape(value);
            let what = escape(what);
            let _infallible = write!(out, "<div class=\"tile\"><b>{value}</b><span>{what}</span></div>");
        }
        out.push_str("</div>\n");
        for row in &self.plots {
            let shown = row.iter().filter(|plot| !plot.is_empty());
            let shown: String = shown.map(|plot| plot.render(row.len())).collect();
            if !shown.is_empty() {
                let _infallible = write!(out, "<div class=\"row of-{}\">\n{shown}</div>\n", row.len().max(2));
            }
        }
        // A single table has the whole width, and so has one with many columns.
        let is_wide =
            self.tables.len() == 1 || self.tables.iter().any(|table| table.columns.len() > COLUMNS_BESIDE_MAX);
        out.push_str(if is_wide { "<div class=\"row\">\n" } else { "<div class=\"row of-2\">\n" });
        self.tables.iter().for_each(|table| render_table(out, table));
        out.push_str("</div>\n<ul>\n");
        for note in &self.notes {
            let _infallible = writeln!(out, "<li>{}</li>", escape(note));
        }
        out.push_str("</ul>\n</section>\n");
    }
}

fn render_table(out: &mut String, table: &Table) {
    let _infallible = write!(out, "<div class=\"table\"><table>\n<tr><th>{}</th>", escape(table.title));
    for column in &table.columns {
        let _infallible = write!(out, "<th>{}</th>", escape(column));
    }
    out.push_str("</tr>\n");
    for (name, cells) in &table.rows {
        let _infallible = write!(out, "<tr><td>{}</td>", escape(name));
        for cell in cells {
            let _infallible = write!(out, "<td>{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_shown_can_be_markup() {
        let evil = "<script>\"&'";
        let program = Program {
            client: evil.to_owned(),
            commit: evil.to_owned(),
            allocator: evil.to_owned(),
            command: evil.to_owned(),
        };
        let host = Host { cpu: evil.to_owned(), cores: 2, kernel: evil.to_owned() };
        let mut page = Page::new(evil, &host, &program, [LoadAverage::default(); 2]);
        page.sections.push(Section {
            title: evil.to_owned(),
            shape: evil.to_owned(),
            verdict: evil.to_owned(),
            tiles: vec![(evil.to_owned(), evil.to_owned())],
            notes: vec![evil.to_owned()],
            tables: vec![Table { title: evil, columns: vec![evil], rows: vec![(evil, vec![evil.to_owned()])] }],
            ..Section::default()
        });
        let html = page.render();
        assert!(!html.contains("<script") && !html.contains("\"&'"), "{html}");
        assert!(html.contains("&lt;script&gt;&quot;&amp;&#39;"));
    }

    #[test]
    fn a_table_that_stands_alone_has_the_whole_width() {
        let table = || Table { title: "t", columns: vec!["c"], rows: vec![("r", vec!["1".to_owned()])] };
        let shown = |tables: Vec<Table>| {
            let mut html = String::new();
            Section { tables, ..Section::default() }.render(&mut html);
            html
        };
        assert!(shown(vec![table()]).contains("<div class=\"row\">\n<div class=\"table\">"));
        assert!(shown(vec![table(), table()]).contains("<div class=\"row of-2\">\n<div class=\"table\">"));
    }
}
