//! Frames of clusters in several states, keys, and laws of every state.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;
use serde_json::{Value, json};
use shardd_api::hot::HotOrder;
use shardd_api::overview::rows::RowOrder;

use super::keys::{Act, press};
use super::state::{Mode, Pane, Seen, State, Trouble, Window};
use super::view;
use crate::plain::is_invisible;

/// 14:13:20 UTC.
const NOW: u64 = 1_790_000_000;
const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (160, 48);

fn run(name: &str, exposed: f64, stage: Option<&str>, is_straggler: bool) -> Value {
    let waits = stage.map_or_else(|| json!({}), |stage| json!({ (stage): exposed }));
    json!({
        "run": name, "ranks": 4, "epoch": 3, "position": 630, "epoch_samples": 1000,
        "samples_per_second": 12345.6,
        "epoch_ends": { "in_s": 1080.0, "earliest_s": 900.0, "latest_s": 1320.0 },
        "waits": {
            "exposed_share": exposed, "stage": stage, "rank": 3, "node": "n2",
            "since": (stage.is_some()).then_some(NOW - 720), "is_straggler": is_straggler,
        },
        "readers": [{
            "rank": 3, "node": "n2", "samples_per_second": 3000.0, "compute_share": 1.0 - exposed, "wait_shares": waits,
        }],
        "exchange": { "waiting_bytes": 0, "paused_nodes": 0, "unsent_grains": 0 },
    })
}

fn finding(severity: &str, title: &str, cause: &str, remedy: &str) -> Value {
    json!({ "severity": severity, "kind": "kind", "title": title, "cause": cause, "remedy": remedy, "node": "n2" })
}

fn node(id: &str, state: &str, disk_free: u64) -> Value {
    json!({
        "id": id, "http": format!("http://{id}:7700"), "state": state, "hosted_partitions": 4, "ranks": 1,
        "cache_used_bytes": 6_u64 << 30, "cache_limit_bytes": 64_u64 << 30, "disk_free_bytes": disk_free,
        "disk_size_bytes": 1000, "origin_bytes": 3_u64 << 30, "served_bytes": 5000, "misses": 17,
        "corrupt_grains": 0, "processors": 1.25, "resident_bytes": 47_u64 << 20, "start": NOW - 86_400,
        "release": "0.1.0",
    })
}

fn shard(byte: u8, reads: f64) -> Value {
    json!({
        "shard": format!("{byte:02x}").repeat(32), "reads": reads, "misses": reads / 10.0, "bytes": reads * 1e6,
        "miss_seconds": 0.0123, "nodes": ["n1", "n2", "n3"],
    })
}

/// An answer of a cluster with these runs, findings and nodes.
fn seen(runs: &[Value], findings: &[Value], nodes: &[Value], total: usize, offset: usize) -> Seen {
    let view = json!({
        "node": "n1", "release": "0.1.0", "at": NOW,
        "nodes": { "live": total, "lost": 1, "draining": 0, "unhealthy": 0, "unanswered": 0 },
        "runs": runs, "findings": findings,
        "totals": {
            "cache_used_bytes": 12_u64 << 30, "cache_limit_bytes": 256_u64 << 30, "origin_bytes": 9_u64 << 30,
            "exchange_bytes": 0, "corrupt_grains": 0,
        },
    });
    let rows = json!({ "total": total, "offset": offset, "rows": nodes });
    let hot = json!({ "half_life_s": 600, "shards": [shard(0xab, 1234.5), shard(0x17, 3.2)] });
    Seen {
        server: "http://127.0.0.1:7700".to_owned(),
        at: NOW,
        view: serde_json::from_value(view).expect("a view"),
        rows: serde_json::from_value(rows).expect("rows"),
        window: Window { order: RowOrder::State, search: String::new(), offset, limit: 100 },
        hot: serde_json::from_value(hot).expect("hot shards"),
        hot_order: HotOrder::Reads,
    }
}

fn healthy() -> State {
    let nodes: Vec<Value> = (1..=4).map(|n| node(&format!("n{n}"), "live", 500)).collect();
    State::new(seen(&[run("train-a", 0.004, None, false)], &[], &nodes, 4, 0), Duration::from_secs(2))
}

/// A straggler, a corrupt disk and a disk that is nearly full.
fn troubled() -> State {
    let nodes = [
        node("n1", "live", 500),
        node("n2", "unhealthy", 500),
        node("n3", "live", 10),
        node("n4", "lost", 0),
    ];
    let findings = [
        finding(
            "critical",
            "the disk of node n2 corrupts data",
            "17 grains in its cache did not match the manifest since it started. Each was dropped and fetched again, so no rank \
             has read one.",
            "Replace the disk. Drain the node first: `shardctl drain n2`. `dmesg` and `smartctl` show the disk's errors.",
        ),
        finding(
            "critical",
            "the cache disk of node n3 is nearly full",
            "1.0 GiB of 100.0 GiB are free on /data.",
            "Free space.",
        ),
        finding(
            "warning",
            "rank 3 of train-a slows every step: it waits for its disk",
            "Rank 3 waits 41 %.",
            "Use a faster disk.",
        ),
    ];
    let runs = [run("train-a", 0.41, Some("disk"), true), run("train-b", 0.2, Some("network"), false)];
    State::new(seen(&runs, &findings, &nodes, 4, 0), Duration::from_secs(2))
}

fn buffer(state: &State, (width, height): (u16, u16)) -> Buffer {
    let mut state = state.clone();
    view::scroll(&mut state, Rect::new(0, 0, width, height));
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
    terminal.draw(|frame| view::draw(&state, frame)).expect("memory");
    terminal.backend().buffer().clone()
}

fn lines(state: &State, size: (u16, u16)) -> Vec<String> {
    let buffer = buffer(state, size);
    let rows = buffer.content().chunks(size.0.into());
    rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned())
        .collect()
}

fn assert_has(frame: &[String], texts: &[&str]) {
    for text in texts {
        assert!(frame.iter().any(|line| line.contains(text)), "no {text:?} in\n{}", frame.join("\n"));
    }
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

fn pressed(state: &mut State, codes: &[KeyCode]) -> Act {
    codes.iter().fold(Act::Nothing, |_, code| press(state, key(*code), 10))
}

#[test]
fn a_healthy_cluster_is_so_at_a_glance() {
    for size in [SMALL, LARGE] {
        let frame = lines(&healthy(), size);
        assert!(
            frame[0].starts_with("Training is not held up by data: <1 % of the time exposed"),
            "{}",
            frame[0]
        );
        let verdict = frame[..2].join(" ");
        assert!(verdict.contains("epoch 3 done in 18 min (15-22 min)"), "{verdict}");
        assert_has(
            &frame,
            &[
                "asked: n1 | nodes: 4 live, 1 lost",
                "14:13:20 UTC, every 2 s",
                "1 Findings (0)",
                "nothing is wrong",
                "2 Runs (1)",
                "train-a",
                "█████░░░  63 %",
                "12,345/s",
                "··········",
                "15-22 min",
                "3 Nodes (4)",
                "state▾",
                "> n1",
                "live",
                "9 %",
                "50 %",
                "3.0 GiB",
                "1.2",
                "47.0 MiB",
                "4 Hot shards (2)",
                "abababab",
                "1,234",
                "reads▾",
                "12.3 ms",
                "n1, n2 and 1 more",
                "F10Quit",
            ],
        );
    }
    let frame = lines(&healthy(), LARGE);
    assert_has(
        &frame,
        &["corrupt", "served", "misses", "release", "0.1.0", "3 of 4 at n2", &"ab".repeat(32)],
    );
}

#[test]
fn each_cause_is_on_the_first_screen_and_the_selected_one_has_its_remedy() {
    for size in [SMALL, LARGE] {
        let mut state = troubled();
        let frame = lines(&state, size);
        let verdict = frame[..3].join(" ");
        for text in [
            "TRAINING WAITS FOR DATA: 41 % of the time exposed",
            "rank 3 of run train-a (node n2) alone waits for disk",
            "since 14:01:20 UTC (12 min)",
            "epoch 3 done in 18 min",
        ] {
            assert!(verdict.contains(text), "no {text:?} in {verdict}");
        }
        assert_has(
            &frame,
            &[
                "> critical the disk of node n2 corrupts data",
                "cause: 17 grains in its cache",
                "remedy: Replace the disk. Drain",
                "critical the cache disk of node n3 is nearly full: 1.0 GiB of",
                "warning  rank 3 of train-a slows every step",
                "dddd······",
                "n2",
                "unhealthy",
                "99 %",
                "lost",
            ],
        );
        pressed(&mut state, &[KeyCode::Down]);
        let frame = lines(&state, size);
        assert_has(&frame, &["> critical the cache disk of node n3 is nearly full", "remedy: Free space."]);
        assert!(!frame.iter().any(|line| line.contains("remedy: Replace")), "{}", frame.join("\n"));
    }
    let mut elsewhere = troubled();
    pressed(&mut elsewhere, &[KeyCode::Char('3')]);
    assert_has(
        &lines(&elsewhere, SMALL),
        &[
            "critical the disk of node n2",
            "critical the cache disk of node n3",
            "warning  rank 3 of train-a",
            "> n1",
        ],
    );
    let verdict = lines(&troubled(), LARGE)[..3].join(" ");
    assert!(verdict.contains("another run waits, too"), "{verdict}");
}

#[test]
fn what_the_node_leaves_out_of_its_lists_is_counted() {
    let mut state = troubled();
    state.seen.view.overview.more_findings = 1900;
    state.seen.view.overview.more_runs = 11;
    assert_has(&lines(&state, LARGE), &["Findings (3 of 1,903)", "Runs (2 of 13)"]);
}

#[test]
fn a_cluster_without_runs_says_so() {
    let mut state = State::new(seen(&[], &[], &[node("n1", "live", 500)], 1, 0), Duration::from_secs(2));
    let frame = lines(&state, SMALL);
    assert_eq!(frame[0], "Nothing trains: no run is being read.");
    assert_has(&frame, &["no run is being read", "2 Runs (0)"]);
    let mut silent = run("train-a", 0.0, None, false);
    silent["waits"].take();
    silent["epoch_ends"].take();
    state.seen = seen(&[silent], &[], &[], 0, 0);
    assert!(lines(&state, LARGE)[0].starts_with("Run train-a does not report yet whether it waits for data"));
}

/// Texts that would steer a terminal, if they reached it.
fn hostile() -> State {
    let text = "\u{1b}[2J\u{9b}31m\u{7}x\u{202e}gnp\u{200b}\r\n\t\u{1b}]0;title\u{7} 猫🦀e\u{301}";
    let findings = [finding("critical", text, &text.repeat(200), &"\u{1b}c".repeat(5000))];
    let mut nodes = [node("n1", "live", 500)];
    nodes[0]["http"] = text.into();
    nodes[0]["release"] = text.into();
    let mut state = State::new(
        seen(&[run("r", 0.4, Some("python"), false)], &findings, &nodes, 1, 0),
        Duration::from_secs(2),
    );
    state.seen.view.release = text.to_owned();
    state.trouble = Some(Trouble { server: text.to_owned(), why: text.to_owned() });
    state.remark(text.to_owned());
    state
}

fn assert_harmless(text: &str) {
    let harmful = |c: char| c.is_control() || is_invisible(c);
    assert!(!text.contains(harmful), "{text:?} steers a terminal");
}

#[test]
fn names_cannot_steer_the_terminal() {
    let mut state = hostile();
    for size in [SMALL, LARGE, (40, 10), (39, 9)] {
        lines(&state, size).iter().for_each(|line| assert_harmless(line));
    }
    assert_has(&lines(&state, SMALL), &["critical \u{fffd}[2J\u{fffd}31m\u{fffd}x\u{fffd}gnp\u{fffd}"]);
    state.is_plain = true;
    view::text(&state, 100).lines().for_each(assert_harmless);
}

#[test]
fn of_a_thousand_nodes_a_window_is_asked_for() {
    let rows = |from: usize, to: usize| -> Vec<Value> {
        (from..to).map(|n| node(&format!("node-{n}"), "live", 500)).collect()
    };
    let area = Rect::new(0, 0, SMALL.0, SMALL.1);
    let mut state = State::new(seen(&[], &[], &rows(0, 100), 1000, 0), Duration::from_secs(2));
    assert_eq!(state.pane, Pane::Nodes);
    view::scroll(&mut state, area);
    assert!(view::has_rows(&state, &view::layout(&state, area)));
    assert_has(&lines(&state, SMALL), &["3 Nodes (1,000)", "> node-0"]);

    pressed(&mut state, &[KeyCode::End]);
    view::scroll(&mut state, area);
    let layout = view::layout(&state, area);
    assert!(!view::has_rows(&state, &layout), "the last rows are not here");
    assert_has(&lines(&state, SMALL), &["> …"]);
    let wanted = view::window(&state, &layout);
    assert!(wanted.limit <= 60 && wanted.offset > 900, "{wanted:?}");
    let mut seen = seen(&[], &[], &rows(wanted.offset, 1000), 1000, wanted.offset);
    seen.window = wanted;
    state.take(seen);
    view::scroll(&mut state, area);
    assert!(view::has_rows(&state, &view::layout(&state, area)));
    assert_has(&lines(&state, SMALL), &["> node-999", "node-990"]);
}

#[test]
fn a_cluster_that_does_not_answer_keeps_its_last_view_with_its_age() {
    let mut state = troubled();
    state.now = NOW + 12;
    state.trouble =
        Some(Trouble { server: "http://n1:7700".to_owned(), why: "connection refused".to_owned() });
    for size in [SMALL, LARGE, (40, 10)] {
        let frame = lines(&state, size);
        assert_has(&frame, &["NO ANSWER, this view is 12 s old"]);
    }
    assert_has(&lines(&state, SMALL), &["http://n1:7700", "the disk of node n2 corrupts data"]);
    let seen = state.seen.clone();
    state.take(seen);
    assert!(!lines(&state, SMALL).iter().any(|line| line.contains("NO ANSWER")));
    state.remark("asking http://n2:7700 from now on".to_owned());
    assert_has(&lines(&state, SMALL), &["asking http://n2:7700"]);
    state.tick(NOW + 60);
    assert_has(&lines(&state, SMALL), &["F10Quit"]);
}

#[test]
fn a_screen_that_is_too_small_says_how_large_it_must_be() {
    for size in [(39, 24), (80, 9), (20, 5), (1, 1)] {
        let frame = lines(&troubled(), size);
        let text = frame.join(" ");
        assert!(size.0 < 20 || text.contains("This terminal has"), "{text}");
        assert!(size.0 < 39 || text.contains("needs 40 and 10"), "{text}");
    }
    assert_has(&lines(&troubled(), (40, 10)), &["TRAINING WAITS FOR DATA"]);
}

#[test]
fn without_colour_nothing_is_coloured_and_with_it_words_say_the_same() {
    let colours =
        |state: &State| buffer(state, LARGE).content().iter().filter(|cell| cell.fg != Color::Reset).count();
    let mut state = troubled();
    assert_eq!(colours(&state), 0);
    let words = lines(&state, LARGE);
    state.has_colour = true;
    assert!(colours(&state) > 0);
    assert_eq!(lines(&state, LARGE), words);
}

#[test]
fn a_frame_for_a_pipe_has_every_remedy_and_no_keys() {
    let mut state = troubled();
    state.is_plain = true;
    let text = view::text(&state, 100);
    for part in [
        "TRAINING WAITS",
        "remedy: Replace the disk",
        "remedy: Free space",
        "remedy: Use a faster",
        "n4",
        "lost",
        "train-b",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(!text.contains("F10") && !text.contains('>') && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn keys_do_what_the_help_says() {
    use KeyCode::{BackTab, Backspace, Char, Down, End, Enter, Esc, F, Home, PageDown, PageUp, Tab, Up};
    type Case<'a> = (&'a [KeyCode], fn(&State) -> bool);
    let table: &[Case<'_>] = &[
        (&[Tab], |state| state.pane == Pane::Runs),
        (&[BackTab], |state| state.pane == Pane::Hot),
        (&[Char('3')], |state| state.pane == Pane::Nodes),
        (&[Down], |state| state.cursor(Pane::Findings).selected == 1),
        (&[Char('j'), Char('j'), Up], |state| state.cursor(Pane::Findings).selected == 1),
        (&[PageDown], |state| state.cursor(Pane::Findings).selected == 2),
        (&[End, PageUp, Char('k')], |state| state.cursor(Pane::Findings).selected == 0),
        (&[Char('G'), Home], |state| state.cursor(Pane::Findings).selected == 0),
        (&[F(1)], |state| state.mode == Mode::Help),
        (&[Char('?'), Char('x')], |state| state.mode == Mode::Rows),
        (&[F(6)], |state| state.mode == Mode::Rows && state.remark.is_some()),
        (&[Char('3'), F(6), Down, Down, Enter], |state| {
            state.node_order == RowOrder::Cache && state.mode == Mode::Rows
        }),
        (&[Char('3'), F(6), End, Esc], |state| {
            state.node_order == RowOrder::State && state.mode == Mode::Rows
        }),
        (&[Char('3'), Char('>')], |state| state.node_order == RowOrder::Name),
        (&[Char('3'), Char('<')], |state| state.node_order == RowOrder::Processors),
        (&[Char('4'), Char('>'), Char('>')], |state| state.hot_order == HotOrder::Misses),
        (&[Char('/'), Char('q'), Char('N'), Backspace], |state| state.cursor(Pane::Findings).filter == "q"),
        (&[F(4), Char('f'), Char('u'), Char('l'), Char('l'), Enter], |state| state.findings() == [1]),
        (&[F(3), Char('x'), Esc], |state| {
            state.cursor(Pane::Findings).filter.is_empty() && state.mode == Mode::Rows
        }),
        (&[Char('/'), Char('x'), Enter, Esc], |state| state.cursor(Pane::Findings).filter.is_empty()),
        (&[Char(' ')], |state| state.is_paused),
        (&[Char(' '), Char(' ')], |state| !state.is_paused),
        (&[Char('+'), Char('+')], |state| state.interval == Duration::from_secs(10)),
        (&[Char('-'), Char('-')], |state| state.interval == Duration::from_secs(1)),
    ];
    for (codes, holds) in table {
        let mut state = troubled();
        assert_eq!(pressed(&mut state, &codes[..codes.len() - 1]), Act::Nothing, "{codes:?}");
        pressed(&mut state, &codes[codes.len() - 1..]);
        assert!(holds(&state), "{codes:?}: {:?} {:?} {:?}", state.mode, state.pane, state.cursors);
    }
}

#[test]
fn keys_that_end_it_end_it_in_every_mode() {
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    for mode in [Mode::Rows, Mode::Help, Mode::Sort(0), Mode::Filter] {
        for quit in [control('c'), key(KeyCode::F(10))] {
            let mut state = State { mode, ..troubled() };
            assert_eq!(press(&mut state, quit, 10), Act::Quit, "{mode:?} {quit:?}");
        }
        assert_eq!(press(&mut State { mode, ..troubled() }, control('z'), 10), Act::Suspend);
    }
    assert_eq!(press(&mut troubled(), key(KeyCode::Char('q')), 10), Act::Quit);
    let released = KeyEvent { kind: KeyEventKind::Release, ..key(KeyCode::Char('q')) };
    assert_eq!(press(&mut troubled(), released, 10), Act::Nothing);
    assert_eq!(pressed(&mut troubled(), &[KeyCode::Char('r')]), Act::Refresh);
    assert_eq!(press(&mut troubled(), control('l'), 10), Act::Redraw);
    assert_eq!(pressed(&mut troubled(), &[KeyCode::Char(' '), KeyCode::Char(' ')]), Act::Refresh);
}

#[test]
fn the_help_and_the_orders_lie_over_the_panes() {
    let mut state = troubled();
    pressed(&mut state, &[KeyCode::F(1)]);
    for size in [SMALL, LARGE] {
        assert_has(
            &lines(&state, size),
            &["quit", "next pane", "n network, d disk, c decode, t transform, p python"],
        );
    }
    pressed(&mut state, &[KeyCode::Esc, KeyCode::Char('3'), KeyCode::F(6), KeyCode::Down]);
    assert_has(&lines(&state, SMALL), &["Sort by", "  state (now)", "> name", "  processors"]);
    pressed(&mut state, &[KeyCode::Esc, KeyCode::Char('/'), KeyCode::Char('g')]);
    assert_has(&lines(&state, SMALL), &["Filter of nodes: g_", "3 Nodes (4) /g"]);
}

/// Strings with everything in them that a terminal could mind.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[a-z \u{1b}\u{9b}\u{202e}猫]{0,300}", "[a-z]{300}"]
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), -1e3..1e3, 0.0..1.0, Just(1e300), Just(-1e300), Just(f64::MAX)]
}

prop_compose! {
    fn any_run()(id in "[a-z0-9][a-z0-9._-]{0,62}", numbers in prop::collection::vec(number(), 6), epoch in any::<u32>(),
        position in any::<u64>(), samples in any::<u64>(), since in any::<Option<u64>>(),
        stage in prop::option::of(prop::sample::select(vec!["network", "disk", "decode", "transform", "python"])),
        has_waits in any::<bool>()) -> Value
    {
        let mut value = run(&id, numbers[0], stage, position.is_multiple_of(2));
        value["epoch"] = epoch.into();
        value["position"] = position.into();
        value["epoch_samples"] = samples.into();
        value["samples_per_second"] = numbers[1].into();
        value["epoch_ends"] = json!({ "in_s": numbers[2], "earliest_s": numbers[3], "latest_s": numbers[4] });
        value["waits"]["since"] = json!(since);
        if !has_waits {
            value["waits"].take();
            value["readers"] = json!([]);
        }
        value
    }
}

prop_compose! {
    fn any_node()(id in "[a-z0-9-]{1,40}", numbers in prop::collection::vec(any::<u64>(), 6), processors in number(),
        state in prop::sample::select(vec!["live", "draining", "unhealthy", "unanswered", "lost"]), release in text(),
        has_numbers in any::<bool>()) -> Value
    {
        let mut value = node(&id, state, numbers[0]);
        for (name, number) in ["cache_used_bytes", "cache_limit_bytes", "disk_size_bytes", "origin_bytes", "start"]
            .into_iter()
            .zip(&numbers[1..])
        {
            value[name] = (*number).into();
        }
        value["processors"] = processors.into();
        value["release"] = release.into();
        if !has_numbers && let Some(fields) = value.as_object_mut() {
            fields.remove("cache_used_bytes");
        }
        value
    }
}

prop_compose! {
    fn any_finding()(severity in prop::sample::select(vec!["info", "warning", "critical"]), title in text(), cause in text(),
        remedy in text()) -> Value
    {
        finding(severity, &title, &cause, &remedy)
    }
}

prop_compose! {
    fn any_seen()(runs in prop::collection::vec(any_run(), 0..6), findings in prop::collection::vec(any_finding(), 0..8),
        nodes in prop::collection::vec(any_node(), 0..20), before in 0..2000_usize, after in 0..2000_usize, reads in number(),
        server in text()) -> Seen
    {
        let total = before + nodes.len() + after;
        let mut seen = seen(&runs, &findings, &nodes, total, before);
        seen.hot.shards[0].what.heat.reads = reads;
        seen.hot.shards[0].what.heat.miss_seconds = Some(reads);
        seen.server = server;
        seen
    }
}

fn any_key() -> impl Strategy<Value = KeyEvent> {
    use KeyCode::{BackTab, Backspace, Char, Down, End, Enter, Esc, F, Home, PageDown, PageUp, Tab, Up};
    let named = vec![
        BackTab,
        Backspace,
        Down,
        End,
        Enter,
        Esc,
        Home,
        PageDown,
        PageUp,
        Tab,
        Up,
        F(1),
        F(3),
        F(4),
        F(6),
    ];
    prop_oneof![
        prop::sample::select(named).prop_map(key),
        prop::sample::select(" +-/<>?1234Ggjk".chars().collect::<Vec<_>>()).prop_map(|c| key(Char(c))),
        any::<char>().prop_map(|c| key(Char(c))),
        Just(KeyEvent::new(Char('u'), KeyModifiers::CONTROL)),
    ]
}

proptest! {
    #[test]
    fn no_state_no_key_and_no_size_brings_it_down_or_steers_the_terminal(
        first in any_seen(),
        later in any_seen(),
        keys in prop::collection::vec(any_key(), 0..20),
        more in prop::collection::vec(any_key(), 0..10),
        width in prop_oneof![1..200_u16, 30..90_u16],
        height in prop_oneof![1..60_u16, 8..26_u16],
        trouble in prop::option::of(text()),
    ) {
        let area = Rect::new(0, 0, width, height);
        let mut state = State::new(first, Duration::from_secs(2));
        state.trouble = trouble.map(|why| Trouble { server: why.clone(), why });
        for key in keys {
            view::scroll(&mut state, area);
            let page = view::page(&view::layout(&state, area), state.pane);
            press(&mut state, key, page);
        }
        state.take(later);
        for key in more {
            press(&mut state, key, 3);
        }
        lines(&state, (width, height)).iter().for_each(|line| assert_harmless(line));
        state.is_plain = true;
        view::text(&state, width.max(60)).lines().for_each(assert_harmless);
    }

    #[test]
    fn the_selected_row_is_on_the_screen(seen in any_seen(), keys in prop::collection::vec(any_key(), 0..20),
        width in 40..200_u16, height in 16..60_u16)
    {
        let area = Rect::new(0, 0, width, height);
        let mut state = State::new(seen, Duration::from_secs(2));
        for key in keys {
            let page = view::page(&view::layout(&state, area), state.pane);
            press(&mut state, key, page);
            view::scroll(&mut state, area);
        }
        state.mode = Mode::Rows;
        view::scroll(&mut state, area);
        let pane = state.pane;
        prop_assume!(state.count(pane) > 0);
        let (cursor, rows) = (state.cursor(pane), view::page(&view::layout(&state, area), pane));
        prop_assert!(rows > 0 && cursor.top <= cursor.selected && cursor.selected < cursor.top + rows, "{cursor:?}, {rows} rows");
    }
}
