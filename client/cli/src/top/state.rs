//! The last view of the cluster, and the choices that keys have made. Pure data.

use std::time::Duration;

use serde::Deserialize;
use shardd_api::hot::{Hosted, HotOrder, HotShard};
use shardd_api::node::NodeId;
use shardd_api::overview::rows::{NodeRows, RowOrder};
use shardd_api::overview::{OverviewHere, RunOverview};

/// The intervals that + and - choose among, in seconds.
const INTERVALS: [u64; 7] = [1, 2, 5, 10, 30, 60, 300];
/// How long a remark stays, in seconds.
const REMARKED: u64 = 10;
/// The longest text of a filter.
const LONGEST_FILTER: usize = 40;

/// The parts of the screen that have rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    Findings,
    Runs,
    Nodes,
    Hot,
}

impl Pane {
    pub(super) const ALL: [Pane; 4] = [Pane::Findings, Pane::Runs, Pane::Nodes, Pane::Hot];

    /// Its place from top to bottom, from 0.
    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// Its heading.
    pub(super) fn name(self) -> &'static str {
        match self {
            Pane::Findings => "Findings",
            Pane::Runs => "Runs",
            Pane::Nodes => "Nodes",
            Pane::Hot => "Hot shards",
        }
    }

    /// The orders of its rows that there are to choose from.
    pub(super) fn orders(self) -> &'static [Order] {
        match self {
            Pane::Findings | Pane::Runs => &[],
            Pane::Nodes => &Order::OF_NODES,
            Pane::Hot => &Order::OF_SHARDS,
        }
    }
}

/// An order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Nodes(RowOrder),
    Shards(HotOrder),
}

impl Order {
    const OF_NODES: [Order; 6] = [
        Order::Nodes(RowOrder::State),
        Order::Nodes(RowOrder::Name),
        Order::Nodes(RowOrder::Cache),
        Order::Nodes(RowOrder::Disk),
        Order::Nodes(RowOrder::Origin),
        Order::Nodes(RowOrder::Processors),
    ];
    const OF_SHARDS: [Order; 4] = [
        Order::Shards(HotOrder::Reads),
        Order::Shards(HotOrder::Bytes),
        Order::Shards(HotOrder::Misses),
        Order::Shards(HotOrder::Latency),
    ];

    /// Its name in requests and on the screen.
    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Nodes(order) => order.name(),
            Order::Shards(order) => order.name(),
        }
    }
}

/// What keys do at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// They move and choose.
    Rows,
    /// The help is shown.
    Help,
    /// An order is chosen: the number of the one under the cursor.
    Sort(usize),
    /// The filter of the pane is written.
    Filter,
}

/// The rows of a pane that are looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The selected row.
    pub(super) selected: usize,
    /// The first row on the screen.
    pub(super) top: usize,
    /// Only rows that contain this are shown.
    pub(super) filter: String,
}

/// The rows of the list of nodes that are wanted of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) order: RowOrder,
    pub(super) search: String,
    pub(super) offset: usize,
    pub(super) limit: usize,
}

/// A shard and the nodes that were asked for it.
pub(super) type HotRow = Hosted<HotShard>;

/// The shards that nodes are asked for most.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct HotRows {
    pub(super) half_life_s: u64,
    pub(super) shards: Vec<HotRow>,
}

/// What a cluster answered last.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    /// The address that answered.
    pub(super) server: String,
    /// When, in seconds since 1970 by the clock here.
    pub(super) at: u64,
    pub(super) view: OverviewHere,
    /// The rows of a window.
    pub(super) rows: NodeRows,
    /// The window that they are of.
    pub(super) window: Window,
    pub(super) hot: HotRows,
    /// The order of those.
    pub(super) hot_order: HotOrder,
}

/// Why the last question was not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) server: String,
    pub(super) why: String,
}

/// Everything on which a frame depends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct State {
    pub(super) seen: Seen,
    /// The time in seconds since 1970.
    pub(super) now: u64,
    pub(super) trouble: Option<Trouble>,
    pub(super) pane: Pane,
    pub(super) cursors: [Cursor; 4],
    pub(super) mode: Mode,
    pub(super) node_order: RowOrder,
    pub(super) hot_order: HotOrder,
    pub(super) interval: Duration,
    pub(super) is_paused: bool,
    /// A remark, until the next key or for some seconds.
    pub(super) remark: Option<String>,
    /// When it goes, in seconds since 1970.
    pub(super) remark_ends: u64,
    pub(super) has_colour: bool,
    /// For a pipe: everything in full, without keys and without a cursor.
    pub(super) is_plain: bool,
}

impl State {
    /// With the cursor on the findings, or else on the nodes.
    pub(super) fn new(seen: Seen, interval: Duration) -> State {
        let pane = match seen.view.overview.findings.is_empty() {
            true => Pane::Nodes,
            false => Pane::Findings,
        };
        State {
            now: seen.at,
            node_order: seen.window.order,
            hot_order: seen.hot_order,
            seen,
            trouble: None,
            pane,
            cursors: Default::default(),
            mode: Mode::Rows,
            interval,
            is_paused: false,
            remark: None,
            remark_ends: 0,
            has_colour: false,
            is_plain: false,
        }
    }

    /// The cursor of the pane in focus.
    pub(super) fn cursor_mut(&mut self) -> &mut Cursor {
        &mut self.cursors[self.pane.index()]
    }

    pub(super) fn cursor(&self, pane: Pane) -> &Cursor {
        &self.cursors[pane.index()]
    }

    /// The order of a pane, if it can be chosen.
    pub(super) fn order(&self, pane: Pane) -> Option<Order> {
        match pane {
            Pane::Findings | Pane::Runs => None,
            Pane::Nodes => Some(Order::Nodes(self.node_order)),
            Pane::Hot => Some(Order::Shards(self.hot_order)),
        }
    }

    /// Sorts the rows of a pane, from the first one on.
    pub(super) fn sort(&mut self, order: Order) {
        let pane = match order {
            Order::Nodes(order) => {
                self.node_order = order;
                Pane::Nodes
            }
            Order::Shards(order) => {
                self.hot_order = order;
                Pane::Hot
            }
        };
        let cursor = &mut self.cursors[pane.index()];
        (cursor.selected, cursor.top) = (0, 0);
    }

    /// The findings that the filter lets through, with their places among all.
    pub(super) fn findings(&self) -> Vec<usize> {
        let filter = &self.cursor(Pane::Findings).filter;
        let all = self.seen.view.overview.findings.iter().enumerate();
        let found = all.filter(|(_, finding)| {
            let about =
                [finding.node.as_ref().map(NodeId::as_str), finding.run.as_ref().map(|run| run.as_str())];
            let texts = [
                finding.severity.name(),
                finding.kind.as_str(),
                finding.title.as_str(),
                finding.cause.as_str(),
            ];
            texts.into_iter().chain(about.into_iter().flatten()).any(|text| contains(text, filter))
        });
        found.map(|(at, _)| at).collect()
    }

    /// The runs that the filter lets through.
    pub(super) fn runs(&self) -> Vec<&RunOverview> {
        let filter = &self.cursor(Pane::Runs).filter;
        self.seen.view.overview.runs.iter().filter(|run| contains(run.run.as_str(), filter)).collect()
    }

    /// The shards that the filter lets through.
    pub(super) fn shards(&self) -> Vec<&HotRow> {
        let filter = &self.cursor(Pane::Hot).filter;
        let is_wanted = |row: &&HotRow| {
            let shard = row.what.shard.to_string();
            contains(&shard, filter) || row.nodes.iter().any(|node| contains(node.as_str(), filter))
        };
        self.seen.hot.shards.iter().filter(is_wanted).collect()
    }

    /// How many rows a pane has that can be shown, on the screen or not.
    pub(super) fn count(&self, pane: Pane) -> usize {
        match pane {
            Pane::Findings => self.findings().len(),
            Pane::Runs => self.runs().len(),
            // Without a cursor no other rows can be reached.
            Pane::Nodes if self.is_plain => self.seen.rows.rows.len(),
            Pane::Nodes => self.seen.rows.total,
            Pane::Hot => self.shards().len(),
        }
    }

    /// Takes an answer, and leaves cursors where there are rows.
    pub(super) fn take(&mut self, seen: Seen) {
        self.seen = seen;
        self.trouble = None;
        self.settle();
    }

    /// Moves cursors to rows that there are.
    pub(super) fn settle(&mut self) {
        for pane in Pane::ALL {
            let last = self.count(pane).saturating_sub(1);
            let cursor = &mut self.cursors[pane.index()];
            cursor.selected = cursor.selected.min(last);
            cursor.top = cursor.top.min(cursor.selected);
        }
    }

    /// Makes a remark.
    pub(super) fn remark(&mut self, text: String) {
        self.remark = Some(text);
        self.remark_ends = self.now.saturating_add(REMARKED);
    }

    /// Lets time pass.
    pub(super) fn tick(&mut self, now: u64) {
        self.now = now;
        if now >= self.remark_ends {
            self.remark = None;
        }
    }

    /// The next longer interval, or the next shorter one.
    pub(super) fn change_interval(&mut self, is_longer: bool) {
        let now = self.interval.as_secs();
        let next = match is_longer {
            true => INTERVALS.iter().find(|interval| **interval > now),
            false => INTERVALS.iter().rev().find(|interval| **interval < now),
        };
        self.interval = Duration::from_secs(next.copied().unwrap_or(now));
    }

    /// A character more in the filter of the pane in focus.
    pub(super) fn write_filter(&mut self, c: char) {
        let cursor = self.cursor_mut();
        if cursor.filter.chars().count() < LONGEST_FILTER && !c.is_control() {
            cursor.filter.extend(c.to_lowercase());
        }
        self.begin();
    }

    /// The pane in focus from its first row on.
    pub(super) fn begin(&mut self) {
        let cursor = self.cursor_mut();
        (cursor.selected, cursor.top) = (0, 0);
    }
}

fn contains(text: &str, filter: &str) -> bool {
    filter.is_empty() || text.to_lowercase().contains(filter)
}
