//! The printed table.

use std::io::{self, Write};

use serde::Serialize;
use shardd_trainer::collective::Collective;
use shardfmt::ByteSize;

use super::link_name;
use super::measure::{Row, Task};

pub(super) fn heading(task: Task, collective: &dyn Collective) -> io::Result<()> {
    let (world, link) = (collective.world(), link_name(collective.link()));
    let mut out = io::stdout().lock();
    writeln!(out, "\n{}, {world} ranks, {link}", task.name())?;
    writeln!(
        out,
        "{:>10}  {:<12} {:>12} {:>10} {:>10}",
        "size", "algorithm", "latency µs", "alg GB/s", "bus GB/s"
    )
}

/// A `*` marks the choice for the size.
pub(super) fn line(row: &Row) -> io::Result<()> {
    let Row { algorithm, latency_us, algorithm_gb_s, bus_gb_s, .. } = row;
    let (size, mark) = (ByteSize(row.bytes as u64), if row.is_chosen { '*' } else { ' ' });
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{size:>10} {mark}{algorithm:<12} {latency_us:>12.1} {algorithm_gb_s:>10.2} {bus_gb_s:>10.2}"
    )
}

/// The fastest algorithm of every size, where there is a choice, beside the one that is chosen.
pub(super) fn crossovers(rows: &[Row], collective: &dyn Collective) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let chosen: Vec<&Row> = rows.iter().filter(|row| row.is_chosen).collect();
    if chosen.is_empty() || collective.world() == 1 {
        return Ok(());
    }
    writeln!(out, "\ncrossovers: the chosen algorithm, and the fastest one here")?;
    for chosen in chosen {
        let same = |row: &&Row| (row.operation, row.bytes) == (chosen.operation, chosen.bytes);
        // Algorithms with another sum are not alternatives.
        let rivals =
            rows.iter().filter(same).filter(|row| !["compensated", "exact"].contains(&row.algorithm));
        let Some(fastest) = rivals.min_by(|a, b| a.latency_us.total_cmp(&b.latency_us)) else { continue };
        let (size, times) = (ByteSize(chosen.bytes as u64), chosen.latency_us / fastest.latency_us);
        let (operation, algorithm) = (chosen.operation, chosen.algorithm);
        let verdict = if fastest.algorithm == algorithm {
            "the fastest".to_owned()
        } else {
            format!("{times:.2} times the time of {}", fastest.algorithm)
        };
        writeln!(out, "{size:>10}  {operation:<14} {algorithm:<12} {verdict}")?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Whole<'a> {
    transport: &'static str,
    is_encrypted: bool,
    world: u32,
    hosts: &'a [u32],
    rows: &'a [Row],
}

pub(super) fn json(rows: &[Row], collective: &dyn Collective, is_encrypted: bool) -> io::Result<()> {
    let transport = link_name(collective.link());
    let whole = Whole { transport, is_encrypted, world: collective.world(), hosts: collective.hosts(), rows };
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &whole)?;
    writeln!(out)
}

/// One row, on one line, at once.
pub(super) fn turn(row: &Row) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, row)?;
    writeln!(out)?;
    out.flush()
}
