//! Live screen, drawn from the board for any size of the terminal.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, RenderDirection, Row, Sparkline, Table, Wrap};

use super::board::{Board, Link, Series};
use super::items::List;
use super::look::{Latency, View};
use console::brief::{bytes, count, per_s, seconds, size};

const DIM: Style = Style::new().fg(Color::DarkGray);
/// Smallest size of the terminal, below which nothing useful can be shown.
const SMALLEST: (u16, u16) = (80, 20);
/// Size of the terminal from which all lists are shown at the same time.
const WIDE: (u16, u16) = (160, 18);
/// Width of the numbers on the left of a rate panel.
const NUMBERS_WIDTH: u16 = 12;
/// Ratio from which the bar of a gauge becomes a warning.
const NEARLY_FULL: f64 = 0.8;

pub(super) fn draw(frame: &mut Frame, board: &Board) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!("{} x {} is too small; make it {} x {}", area.width, area.height, SMALLEST.0, SMALLEST.1);
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
    }
    // The lists get most of the remaining rows.
    let rates = (area.height / 5).clamp(6, 12);
    let [head, top, middle, bottom, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(rates),
        Constraint::Length(7),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, head, board);
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(top);
    let rate = |now: fn(&View) -> f64| board.view.as_ref().map(now);
    let published = [
        (rate(|view| view.published_per_s), &board.published),
        (rate(|view| view.published_bytes_per_s), &board.published_bytes),
    ];
    draw_rates(frame, left, "published", Color::Cyan, published);
    let delivered = [
        (rate(|view| view.delivered_per_s), &board.delivered),
        (rate(|view| view.delivered_bytes_per_s), &board.delivered_bytes),
    ];
    draw_rates(frame, right, "delivered", Color::Green, delivered);
    let [left, center, right] =
        Layout::horizontal([Constraint::Fill(27), Constraint::Fill(25), Constraint::Fill(28)]).areas(middle);
    draw_state(frame, left, board.view.as_ref());
    draw_latencies(frame, center, board.view.as_ref());
    draw_limits(frame, right, board.view.as_ref());
    draw_lists(frame, bottom, board);
    draw_foot(frame, foot);
    draw_trouble(frame, top.union(bottom), board);
}

fn block(title: &str) -> Block<'_> {
    Block::bordered().border_style(DIM).title(Line::from(format!(" {title} ")).style(Style::new().bold()))
}

fn draw_head(frame: &mut Frame, area: Rect, board: &Board) {
    let (state, style) = match (&board.link, board.is_paused) {
        (Link::Lost(_), _) => ("no broker", Style::new().fg(Color::Red).bold()),
        (_, true) => ("paused", Style::new().fg(Color::Yellow).bold()),
        (Link::Connecting, _) => ("connecting", Style::new().fg(Color::Yellow)),
        (Link::Measuring, _) => ("measuring", Style::new().fg(Color::Yellow)),
        (Link::Live, _) => ("live", Style::new().fg(Color::Green)),
    };
    let left = Line::from(vec![
        Span::from(" thalweg top ").add_modifier(Modifier::REVERSED),
        Span::from(format!(" {}  ", board.address)),
        Span::styled(state, style),
    ]);
    frame.render_widget(left, area);
    let right = Line::from(format!("every {} ", seconds(board.interval.as_secs_f64()))).style(DIM);
    frame.render_widget(right.alignment(Alignment::Right), area);
}

/// Draws records per second above bytes per second, each next to its history.
fn draw_rates(frame: &mut Frame, area: Rect, title: &str, color: Color, rows: [(Option<f64>, &Series); 2]) {
    let inner = block(title).inner(area);
    let width = usize::from(inner.width.saturating_sub(NUMBERS_WIDTH));
    let peaks = format!(" peak {}/s, {}/s ", count(rows[0].1.peak(width) as f64), bytes(rows[1].1.peak(width) as f64));
    frame.render_widget(block(title).title(Line::from(peaks).style(DIM).right_aligned()), area);
    let areas: [Rect; 2] = Layout::vertical([Constraint::Fill(1); 2]).areas(inner);
    for (i, ((now, series), area)) in rows.into_iter().zip(areas).enumerate() {
        let [numbers, line] = Layout::horizontal([Constraint::Length(NUMBERS_WIDTH), Constraint::Fill(1)]).areas(area);
        let (text, unit) = match (now, i) {
            (None, 0) => ("-".to_owned(), "records"),
            (None, _) => ("-".to_owned(), "bytes"),
            (Some(now), 0) => (per_s(count(now)), "records"),
            (Some(now), _) => (per_s(bytes(now)), "bytes"),
        };
        let text = vec![Line::from(text).style(Style::new().fg(color).bold()), Line::from(unit).style(DIM)];
        frame.render_widget(Paragraph::new(text), numbers);
        // An empty row separates the two, if there is one to spare.
        let line = if area.height > 2 && i == 0 { Rect { height: area.height - 1, ..line } } else { line };
        let spark = Sparkline::default()
            .data(series.newest(width))
            .max(series.peak(width).max(1))
            .direction(RenderDirection::RightToLeft)
            .style(Style::new().fg(color));
        frame.render_widget(spark, line);
    }
}

fn draw_state(frame: &mut Frame, area: Rect, view: Option<&View>) {
    let line = |name: &str, value: Option<String>, is_bad: bool| {
        let style = if is_bad { Style::new().fg(Color::Red).bold() } else { Style::new().bold() };
        let value = value.unwrap_or_else(|| "-".to_owned());
        Line::from(vec![Span::styled(format!("{name:<12}"), DIM), Span::styled(value, style)])
    };
    // A rate, and the total since the broker started.
    let counted = |name: &str, now: fn(&View) -> (f64, f64)| {
        let now = view.map(now);
        let text = now.map(|(rate, all)| format!("{}/s, {}", count(rate), count(all)));
        line(name, text, now.is_some_and(|(rate, _)| rate > 0.0))
    };
    let lines = vec![
        counted("dropped", |view| (view.dropped_per_s, view.dropped)),
        counted("slow", |view| (view.slow_per_s, view.slow)),
        counted("refused", |view| (view.errors_per_s, view.errors)),
        line("subscribers", view.map(|v| count(v.subscribers)), false),
        line("connections", view.map(|v| count(v.connections)), false),
    ];
    let topics = view.map_or(String::new(), |view| {
        format!(" {} topic{} ", count(view.topics), if view.topics == 1.0 { "" } else { "s" })
    });
    let block = block("state").title(Line::from(topics).style(DIM).right_aligned());
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_latencies(frame: &mut Frame, area: Rect, view: Option<&View>) {
    let cell = |value: Option<f64>| {
        let text = value.map_or("-".to_owned(), seconds);
        Cell::from(Line::from(text).alignment(Alignment::Right)).style(Style::new().bold())
    };
    let row = |name: &'static str, latency: Latency| {
        Row::new([Cell::from(name).style(DIM), cell(latency.p50), cell(latency.p99)])
    };
    let head = |name: &'static str| Cell::from(Line::from(name).alignment(Alignment::Right)).style(DIM);
    let rows = [
        Row::new([Cell::from(""), head("p50"), head("p99")]),
        row("publish", view.map(|view| view.publish).unwrap_or_default()),
        row("deliver", view.map(|view| view.delivery_wait).unwrap_or_default()),
    ];
    let widths = [Constraint::Length(7), Constraint::Fill(1), Constraint::Fill(1)];
    frame.render_widget(Table::new(rows, widths).block(block("time")), area);
}

fn draw_limits(frame: &mut Frame, area: Rect, view: Option<&View>) {
    let outer = block("limits");
    let inner = outer.inner(area);
    frame.render_widget(outer, area);
    let Some(view) = view else {
        return;
    };
    let [logs, queue, process] =
        Layout::vertical([Constraint::Length(2), Constraint::Length(2), Constraint::Length(1)]).areas(inner);
    let numbers = format!("{} of {}", size(view.log_bytes), size(view.log_bytes_max));
    draw_gauge(frame, logs, "logs", numbers, view.log_bytes, view.log_bytes_max);
    let numbers = format!("{} of {} batches", count(view.queued), count(view.queued_max));
    draw_gauge(frame, queue, "queue", numbers, view.queued, view.queued_max);
    let cpu = view.cpu_share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
    let line = vec![
        Span::styled("CPU ", DIM),
        Span::from(format!("{cpu}  ")).bold(),
        Span::styled("RSS ", DIM),
        Span::from(view.resident_bytes.map_or("-".to_owned(), size)).bold(),
    ];
    frame.render_widget(Line::from(line), process);
}

/// Draws a name, a bar and a percentage, with the numbers below.
fn draw_gauge(frame: &mut Frame, area: Rect, name: &str, numbers: String, value: f64, max: f64) {
    let ratio = if max > 0.0 { (value / max).clamp(0.0, 1.0) } else { 0.0 };
    let color = if ratio >= NEARLY_FULL { Color::Red } else { Color::Blue };
    let width = usize::from(area.width).saturating_sub(13);
    // Any value above zero fills at least one cell.
    let filled = ((width as f64 * ratio).round() as usize).max(usize::from(value > 0.0)).min(width);
    let bar = Line::from(vec![
        Span::styled(format!("{name:<6}"), DIM),
        Span::styled("█".repeat(filled), Style::new().fg(color)),
        Span::styled("░".repeat(width - filled), DIM),
        Span::from(format!("{:>5.0} %", ratio * 100.0)).bold(),
    ]);
    frame.render_widget(Paragraph::new(vec![bar, Line::from(format!("      {numbers}"))]), area);
}

/// Draws all lists if there is room for them. Otherwise draws the selected list, with the names of the others.
fn draw_lists(frame: &mut Frame, area: Rect, board: &Board) {
    if area.width < WIDE.0 || area.height < WIDE.1 {
        let mut title = vec![Span::from(" ")];
        for (at, list) in List::ALL.into_iter().enumerate() {
            let style = if list == board.list { Style::new().bold().reversed() } else { DIM };
            title.extend([Span::styled(format!(" {} {} ", at + 1, list.name()), style), Span::from(" ")]);
        }
        return draw_list(frame, area, board, board.list, Line::from(title));
    }
    let halves: [Rect; 2] = Layout::vertical([Constraint::Fill(1); 2]).areas(area);
    let is_shown = |list: &List| match list {
        List::Nodes | List::Sites => board.view.as_ref().is_some_and(|view| view.has(*list)),
        _ => true,
    };
    let shown: Vec<List> = List::ALL.into_iter().filter(is_shown).collect();
    let (upper, lower) = shown.split_at(shown.len() / 2);
    for (half, lists) in halves.into_iter().zip([upper, lower]) {
        let parts = Layout::horizontal(lists.iter().map(|list| Constraint::Fill(share(*list)))).split(half);
        for (part, list) in parts.iter().copied().zip(lists) {
            let title = Line::from(format!(" {} ", list.name())).style(Style::new().bold());
            draw_list(frame, part, board, *list, title);
        }
    }
}

/// Returns the share of a list in the width of the screen: the names of columns are cut off first.
fn share(list: List) -> u16 {
    match list {
        List::Topics | List::Sites | List::Lanes => 5,
        List::Queues | List::Groups | List::Caches | List::Doors => 4,
        List::Nodes => 3,
    }
}

fn draw_list(frame: &mut Frame, area: Rect, board: &Board, list: List, title: Line<'_>) {
    if list == List::Lanes {
        return draw_lanes(frame, area, board.view.as_ref(), title);
    }
    let outer = Block::bordered().border_style(DIM).title(title);
    let Some(shown) = board.view.as_ref().and_then(|view| view.lists.get(list as usize)) else {
        return frame.render_widget(outer, area);
    };
    let total = Line::from(format!(" {} ", shown.total)).style(DIM).right_aligned();
    let mut outer = outer.title(total);
    if !shown.note.is_empty() {
        outer = outer.title_bottom(Line::from(format!(" {} ", shown.note)).style(DIM));
    }
    if shown.rows.is_empty() {
        let none = Paragraph::new(format!(" no {}", list.name())).style(DIM).block(outer);
        return frame.render_widget(none, area);
    }
    let cell = |at: usize, text: String| match at {
        // Names are aligned left, numbers right.
        0 => Cell::from(text),
        _ => Cell::from(Line::from(text).alignment(Alignment::Right)),
    };
    let columns = shown.columns.iter().enumerate();
    let header = Row::new(columns.map(|(at, name)| cell(at, (*name).to_owned()))).style(DIM);
    let room = usize::from(area.height.saturating_sub(3));
    let kept = if shown.total > room { room.saturating_sub(1) } else { shown.total };
    let row = |row: &Vec<String>| Row::new(row.iter().enumerate().map(|(at, text)| cell(at, text.clone())));
    let mut rows: Vec<Row> = shown.rows.iter().take(kept).map(row).collect();
    if kept < shown.total {
        rows.push(Row::new([format!("+{} more", shown.total - kept)]).style(DIM));
    }
    // The name gets the remaining width.
    let width = |at: usize| {
        let cells = shown.rows.iter().take(kept).filter_map(|row| row.get(at)).map(|text| text.chars().count());
        cells.max().unwrap_or_default().max(shown.columns[at].len()) as u16
    };
    let widths = (0..shown.columns.len()).map(|at| match at {
        0 => Constraint::Fill(1),
        _ => Constraint::Length(width(at) + 1),
    });
    frame.render_widget(Table::new(rows, widths).header(header).block(outer), area);
}

fn draw_lanes(frame: &mut Frame, area: Rect, view: Option<&View>, title: Line<'_>) {
    let right = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
    let head = ["lane", "subscribers", "queued", "high water", "enqueued/s", "dropped/s"];
    let header = Row::new(head.map(|name| right(name.to_owned()))).style(DIM);
    let lanes = view.map(|view| view.lanes.as_slice()).unwrap_or_default();
    let room = usize::from(area.height.saturating_sub(3));
    let shown = if lanes.len() > room { room.saturating_sub(1) } else { lanes.len() };
    let mut rows: Vec<Row> = lanes[..shown]
        .iter()
        .map(|lane| {
            let dropped = right(count(lane.dropped_per_s));
            Row::new([
                right(lane.name.clone()),
                right(count(lane.subscribers)),
                right(count(lane.queued)),
                right(count(lane.high_water)),
                right(count(lane.enqueued_per_s)),
                if lane.dropped_per_s > 0.0 { dropped.style(Style::new().fg(Color::Red).bold()) } else { dropped },
            ])
        })
        .collect();
    if shown < lanes.len() {
        rows.push(Row::new([right(format!("+{}", lanes.len() - shown)), right("more".to_owned())]).style(DIM));
    }
    let widths = [Constraint::Length(5), Constraint::Fill(1), Constraint::Fill(1), Constraint::Fill(1)];
    let widths = widths.into_iter().chain([Constraint::Fill(1); 2]);
    let outer = Block::bordered().border_style(DIM).title(title);
    frame.render_widget(Table::new(rows, widths).header(header).block(outer), area);
}

fn draw_foot(frame: &mut Frame, area: Rect) {
    let keys = [("q", "quit"), ("p", "pause"), ("+", "slower"), ("-", "faster"), ("Tab 1-8", "list")];
    let spans = keys.iter().flat_map(|(key, what)| {
        [Span::from(format!(" {key} ")).add_modifier(Modifier::REVERSED), Span::styled(format!(" {what}  "), DIM)]
    });
    let bottom = Rect { y: area.bottom().saturating_sub(1), height: 1, ..area };
    frame.render_widget(Line::from(spans.collect::<Vec<_>>()), bottom);
}

/// Draws a message over the screen while the broker does not answer, as the values below it are old.
fn draw_trouble(frame: &mut Frame, area: Rect, board: &Board) {
    let Link::Lost(why) = &board.link else {
        return;
    };
    let text = format!("no broker at {}, trying again", board.address);
    let width = (area.width - 4).min(76);
    let height = 4 + (why.len() as u16).div_ceil(width.saturating_sub(4).max(1));
    let height = height.min(area.height);
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let lines = vec![Line::from(text).bold(), Line::from(""), Line::from(why.as_str()).style(DIM)];
    let trouble = Block::bordered().border_style(Style::new().fg(Color::Red));
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(lines).wrap(Wrap { trim: true }).alignment(Alignment::Center).block(trouble),
        place,
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::items::tests::in_a_mesh;
    use super::super::look::tests::{looks, looks_of};
    use super::*;

    fn shown(board: &Board, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("in memory");
        terminal.draw(|frame| draw(frame, board)).expect("in memory");
        terminal.backend().to_string()
    }

    fn feed(board: &mut Board, seconds: &[u64]) {
        for look in looks(seconds) {
            board.take(Ok(look));
        }
    }

    #[test]
    fn every_size_shows_the_important_figures() {
        let mut board = Board::new("quic://127.0.0.1:7400", Duration::from_secs(1));
        feed(&mut board, &[1, 2, 3, 4]);
        for (width, height) in [SMALLEST, (80, 24), (120, 40), (300, 100)] {
            let screen = shown(&board, width, height);
            for expected in [
                "127.0.0.1:7400",
                "live",
                "every 1 s",
                "1000/s",
                "4.0 MB/s",
                "10.0 k/s",
                "40.0 MB/s",
                "5/s, 20",
                "8.2 us",
                "64.0 MiB of 1.0 GiB",
                "50 %",
                "100.0 MiB",
                "quit",
                "busy",
                "topics",
                "connections 14",
                "6 %",
                "300 of 8192",
                "3 topics",
            ] {
                assert!(screen.contains(expected), "{expected} at {width} x {height}:\n{screen}");
            }
        }
        assert!(shown(&board, 40, 10).contains("too small"));
    }

    #[test]
    fn a_missing_broker_is_reported_before_and_after_a_connection() {
        let mut board = Board::new("here:7400", Duration::from_secs(1));
        assert!(shown(&board, 80, 24).contains("connecting"));
        board.take(Err("nobody answers".into()));
        assert!(shown(&board, 80, 24).contains("no broker at here:7400, trying again"));
        feed(&mut board, &[1, 2]);
        board.is_paused = true;
        assert!(shown(&board, 80, 24).contains("paused"));
        board.take(Err("nobody answers".into()));
        let screen = shown(&board, 80, 24);
        assert!(screen.contains("trying again") && screen.contains("nobody answers"), "{screen}");
    }

    #[test]
    fn each_list_has_a_key_and_a_wide_screen_shows_all() {
        let mut board = Board::new("here", Duration::from_secs(1));
        feed(&mut board, &[1, 2]);
        for (list, expected) in [
            (List::Topics, "1000/s"),
            (List::Queues, "no queues"),
            (List::Groups, "no groups"),
            (List::Caches, "no caches"),
            (List::Doors, "127.0.0.1:7401"),
            (List::Nodes, "no nodes"),
            (List::Sites, "no sites"),
            (List::Lanes, "enqueued/s"),
        ] {
            board.list = list;
            let screen = shown(&board, 80, 24);
            assert!(screen.contains(expected), "{list:?}:\n{screen}");
        }
        let screen = shown(&board, 170, 50);
        for expected in ["busy", "no queues", "no groups", "no caches", "127.0.0.1:7401", "enqueued/s"] {
            assert!(screen.contains(expected), "{expected}:\n{screen}");
        }
    }

    #[test]
    fn a_mesh_has_a_list_of_sites() {
        let mut board = Board::new("here", Duration::from_secs(1));
        board.list = List::Sites;
        for look in looks_of(&[1, 2], in_a_mesh) {
            board.take(Ok(look));
        }
        for (width, height) in [(80, 24), (170, 50)] {
            let screen = shown(&board, width, height);
            for expected in ["oslo", "direct", "rtt", "2.5 ms", "1000/s", "1000 lookups/s, 99 % hits"] {
                assert!(screen.contains(expected), "{expected}:\n{screen}");
            }
        }
    }

    #[test]
    fn lanes_that_do_not_fit_are_counted() {
        let mut board = Board::new("here", Duration::from_secs(1));
        board.list = List::Lanes;
        feed(&mut board, &[1, 2]);
        if let Some(view) = &mut board.view {
            let lane = view.lanes[0].clone();
            view.lanes.resize(64, lane);
        }
        assert!(shown(&board, 80, 24).contains("more"), "{}", shown(&board, 80, 24));
    }
}
