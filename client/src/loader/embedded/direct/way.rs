//! Which way of reading is fastest where the memory does not hold the data. Pure: figures in, a decision out.

use super::bundles::BUNDLES;

/// What is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    /// Of all shards.
    pub(super) bytes: u64,
    /// Of a row on average, at least 1.
    pub(super) row_bytes: u64,
    /// What a row takes that is kept, at least 1.
    pub(super) kept_bytes: u64,
    /// At least 1.
    pub(super) rows: u64,
    /// At least 1.
    pub(super) shards: u64,
}

/// What a disk gives, in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Disk {
    /// Of shards from their begins to their ends.
    pub(super) sequential: f64,
    /// Of single rows of the data's size.
    pub(super) random: f64,
}

/// A way of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Way {
    /// Each row by itself, shortly before its use.
    Rows,
    /// All shards again and again from begin to end, one after the other. Of each, the rows are kept that are used before
    /// its next turn: those of the next `window` rows that are read.
    Sweeps {
        /// In rows.
        window: u64,
    },
}

/// What knowing of a row ahead of its use takes, in bytes.
const KNOWN: u64 = 96;

/// Whether data is to be read past the page cache with this room for its pages: it is much larger. Of data that is little larger the
/// cache gives a good part. Of a share x of a random order that fits, it hits 1 - a + a ln a of the next, a = 1 - x: half for
/// 0.8, 0.03 for a quarter.
pub(in super::super) fn is_too_large(bytes: u64, room: u64) -> bool {
    bytes > room.saturating_add(room / 4)
}

/// Whether that is so also for rows that are read alone either way. Past the cache a disk gives as much, for less of the processor's
/// time (benches/README.md, "From disk"): the cache is to hit less than one in sixteen.
pub(in super::super) fn is_much_too_large(bytes: u64, room: u64) -> bool {
    bytes > room.saturating_mul(3)
}

/// The faster way. If both are as fast, rows alone: sweeps read what they do not use, which others could.
pub(super) fn choose(data: &Data, memory: u64, disk: &Disk) -> Way {
    let window = window(data, memory);
    match sweep_rate(data, window, disk) > disk.random {
        true => Way::Sweeps { window },
        false => Way::Rows,
    }
}

/// Whether a measurement leaves no doubt about the faster way, even if it is off by a half.
pub(super) fn is_clear(data: &Data, memory: u64, disk: &Disk) -> bool {
    let off = |sequential: f64, random: f64| {
        choose(data, memory, &Disk { sequential: sequential * disk.sequential, random: random * disk.random })
    };
    off(0.5, 1.0) == off(1.0, 0.5)
}

/// How many rows ahead a sweep may keep, for what is kept to fit into `memory`. A shard that has had its turn just now holds
/// its rows of all the window, one that is next has given them away, so half a window is kept on average, and of two turns the
/// rows that are read ahead. A part is spare: for bundles of which some rows were used, and since orders are not even.
pub(super) fn window(data: &Data, memory: u64) -> u64 {
    let half = data.kept_bytes.div_ceil(2);
    let kept = half + half / BUNDLES + 2 * data.kept_bytes / data.shards + half / SPARE;
    (memory / (kept + KNOWN)).clamp(1, data.rows)
}

/// This part of the memory for kept rows is spare.
const SPARE: u64 = 32;

/// Bytes of rows a second: a cycle over all shards gives a window.
fn sweep_rate(data: &Data, window: u64, disk: &Disk) -> f64 {
    window as f64 * data.row_bytes as f64 / data.bytes as f64 * disk.sequential
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GB: u64 = 1 << 30;

    fn data(row_bytes: u64) -> Data {
        Data {
            bytes: GB,
            row_bytes,
            kept_bytes: row_bytes + row_bytes / 50,
            rows: GB / row_bytes,
            shards: 64,
        }
    }

    #[test]
    fn small_rows_are_swept_and_large_ones_read_alone() {
        let small = choose(&data(3072), GB / 5, &Disk { sequential: 1.6e9, random: 0.2e9 });
        assert!(matches!(small, Way::Sweeps { .. }));
        let large = choose(&data(150_528), GB / 5, &Disk { sequential: 1.6e9, random: 1.4e9 });
        assert_eq!(large, Way::Rows);
        let little = choose(&data(3072), GB / 50, &Disk { sequential: 1.6e9, random: 0.2e9 });
        assert_eq!(little, Way::Rows, "with memory for a fiftieth a cycle gives too little");
        let spinning = choose(&data(150_528), GB / 5, &Disk { sequential: 0.2e9, random: 0.015e9 });
        assert!(matches!(spinning, Way::Sweeps { .. }), "a disk that has to move its head");
    }

    proptest! {
        #[test]
        fn what_is_chosen_is_never_much_slower_and_what_a_window_keeps_fits(
            row_bytes in 1u64..1 << 24, rows in 1u64..1 << 30, shards in 1u64..1 << 16, memory in 0u64..1 << 38,
            sequential in 1e6..1e10, random in 1e4..1e10,
        ) {
            let data = Data { bytes: row_bytes * rows, row_bytes, kept_bytes: row_bytes, rows, shards };
            let disk = Disk { sequential, random };
            let all = window(&data, memory);
            prop_assert!(all == 1 || u128::from(all) * u128::from(row_bytes) / 2 <= u128::from(memory));
            if is_clear(&data, memory, &disk) {
                let slower = Disk { sequential: sequential * 0.6, random };
                let faster = Disk { sequential, random: random * 0.6 };
                for disk in [slower, faster] {
                    prop_assert_eq!(choose(&data, memory, &disk), choose(&data, memory, &Disk { sequential, random }));
                }
            }
            match choose(&data, memory, &disk) {
                Way::Sweeps { window } => {
                    prop_assert_eq!(window, all);
                    prop_assert!(sweep_rate(&data, window, &disk) > random);
                }
                Way::Rows => prop_assert!(sweep_rate(&data, all, &disk) <= random),
            }
        }
    }

    #[test]
    fn data_that_nearly_fits_is_left_to_the_page_cache() {
        assert!(!is_too_large(100, 100) && !is_too_large(125, 100) && is_too_large(126, 100));
        assert!(is_too_large(1, 0) && !is_too_large(u64::MAX, u64::MAX));
        assert!(!is_much_too_large(300, 100) && is_much_too_large(301, 100));
        assert!(is_much_too_large(1, 0) && !is_much_too_large(u64::MAX, u64::MAX));
    }
}
