//! Reads single rows, by byte range, of shards that are not on this machine or not checked yet. A window may
//! need a few rows of many shards, and should not wait for all of these shards.
//!
//! A shard's sidecar says where its rows lie and what their digests are; it is checked against the manifest, and the rows against
//! it. Whether single rows or the whole shard are asked for is decided as one decides to rent or to buy skis: rows, until they
//! have cost as much as the shard would have; so no order of reading costs more than twice the best way (Karlin et al.,
//! "Competitive snoopy caching", 1988).

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use futures::{StreamExt, stream};
use shardd_store::origin::{Origin, OriginError};
use shardfmt::row::RowEncoder;
use shardfmt::shard::{RangePlan, Sidecar};
use shardfmt::{RowCodec, RowDigest, ShardEntry, ShardError};

use super::super::LoadError;

/// A request takes as long as this number of bytes, more or less; and stores' clients ask for what lies
/// closer together in one.
const REQUEST: u64 = 1 << 20;

/// Of a sidecar: its bytes for each row, more or less.
const SIDECAR_ROW: u64 = 24;

/// How many shards are asked for rows at once.
const AT_ONCE: usize = 32;

/// Sidecars of shards of this number of rows together are kept.
const ROWS_KEPT: u64 = 4 << 20;

/// How large a shard is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    rows: u32,
    bytes: u64,
    row_bytes: u64,
}

impl Size {
    /// The cost of asking for all of it.
    fn cost(self) -> u64 {
        self.bytes.saturating_add(REQUEST)
    }
}

impl From<&ShardEntry> for Size {
    fn from(entry: &ShardEntry) -> Self {
        let row_bytes = entry.row_bytes / u64::from(entry.rows.max(1));
        Self { rows: entry.rows, bytes: entry.bytes, row_bytes }
    }
}

/// The cost so far of rows of shards that were requested one by one, in bytes: by shard, and nothing once it
/// was asked for whole.
#[derive(Debug)]
pub(super) struct Spent(Vec<u64>);

impl Spent {
    /// Nothing, for this number of shards.
    pub(super) fn none(shards: usize) -> Self {
        Self(vec![0; shards])
    }

    /// Whether to ask for `rows` rows of a shard one by one, and not for all of it. Counts the cost.
    pub(super) fn is_worthwhile(&mut self, number: u32, shard: Size, rows: u64) -> bool {
        let spent = &mut self.0[number as usize];
        let sidecar = if *spent == 0 { REQUEST + u64::from(shard.rows) * SIDECAR_ROW } else { 0 };
        let cost = rows.saturating_mul(shard.row_bytes.saturating_add(REQUEST)).saturating_add(sidecar);
        let cost = spent.saturating_add(cost);
        let is_worthwhile = cost < shard.cost();
        *spent = if is_worthwhile { cost } else { 0 };
        is_worthwhile
    }
}

/// The sidecars that locate rows in shards that are not here.
pub(super) struct Singles {
    /// Of each version.
    codecs: Vec<RowCodec>,
    sidecars: HashMap<u32, Arc<Sidecar>>,
    rows_known: u64,
}

/// Rows that were asked for one by one, for one window.
#[derive(Debug, Default)]
pub(super) struct Taken {
    encoders: Vec<RowEncoder>,
    /// The encoder of a row, by its shard and its number there.
    of: HashMap<(u32, u32), usize>,
}

impl Taken {
    /// Where a row lies that was asked for.
    pub(super) fn place(&self, shard: u32, row: u32) -> (&RowEncoder, usize) {
        let encoder = self.of.get(&(shard, row)).expect("made ready");
        (&self.encoders[*encoder], 0)
    }
}

/// Some rows of a shard.
pub(super) struct Wanted<'a> {
    /// The shard's number among all.
    pub(super) number: u32,
    /// The number of a version that has it.
    pub(super) version: usize,
    pub(super) origin: &'a Origin,
    pub(super) entry: &'a ShardEntry,
    /// The numbers of the rows in the shard, ascending, each once.
    pub(super) rows: Vec<u32>,
}

impl Singles {
    /// For versions of these schemas.
    pub(super) fn new<'a>(schemas: impl Iterator<Item = &'a SchemaRef>) -> Result<Self, LoadError> {
        let codecs = schemas.map(|schema| Ok(RowCodec::new(Arc::clone(schema))?));
        let codecs = codecs.collect::<Result<_, LoadError>>()?;
        Ok(Self { codecs, sidecars: HashMap::new(), rows_known: 0 })
    }

    /// Asks for rows. Gives them, and the numbers of shards that have to be read whole: what the store has of them for single
    /// rows is missing or damaged.
    pub(super) async fn take(&mut self, wanted: &[Wanted<'_>]) -> Result<(Taken, Vec<u32>), LoadError> {
        let (codecs, sidecars) = (&self.codecs, &self.sidecars);
        let asked = wanted.iter().map(|wanted| async move {
            let known = sidecars.get(&wanted.number).cloned();
            (wanted.number, &wanted.rows, rows_of(&codecs[wanted.version], known, wanted).await)
        });
        let mut asked = stream::iter(asked).buffer_unordered(AT_ONCE);
        let (mut taken, mut whole, mut found) = (Taken::default(), Vec::new(), Vec::new());
        while let Some((number, rows, read)) = asked.next().await {
            match read {
                Ok((sidecar, None)) => {
                    found.push((number, sidecar));
                    whole.push(number);
                }
                Ok((sidecar, Some(encoders))) => {
                    found.push((number, sidecar));
                    let first = taken.encoders.len();
                    taken.of.extend(rows.iter().zip(first..).map(|(row, at)| ((number, *row), at)));
                    taken.encoders.extend(encoders);
                }
                Err(error) if is_about_the_shard(&error) => {
                    tracing::debug!(shard = number, %error, "a shard's rows cannot be read one by one");
                    whole.push(number);
                }
                Err(error) => return Err(error),
            }
        }
        drop(asked);
        for (number, sidecar) in found {
            self.know(number, sidecar);
        }
        Ok((taken, whole))
    }

    fn know(&mut self, number: u32, sidecar: Arc<Sidecar>) {
        let rows = sidecar.rows.len() as u64;
        if self.rows_known + rows > ROWS_KEPT {
            self.sidecars.clear();
            self.rows_known = 0;
        }
        if self.sidecars.insert(number, sidecar).is_none() {
            self.rows_known += rows;
        }
    }
}

/// Some rows of a shard, each in a record batch of its own, and where to find others. No rows if they are not to be had for
/// less than half of the shard: it is compressed.
async fn rows_of(
    codec: &RowCodec,
    known: Option<Arc<Sidecar>>,
    Wanted { origin, entry, rows, .. }: &Wanted<'_>,
) -> Result<(Arc<Sidecar>, Option<Vec<RowEncoder>>), LoadError> {
    let sidecar = match known {
        Some(sidecar) => sidecar,
        None => Arc::new(origin.sidecar(entry).await?),
    };
    let ranges: Vec<_> = rows.iter().map(|row| *row..row + 1).collect();
    let plan = sidecar.read_plan(codec.schema(), &ranges)?;
    if plan.bytes() > entry.bytes / 2 {
        return Ok((sidecar, None));
    }
    let fetched = origin.read_ranges(&entry.id, plan.ranges()).await?;
    let encoders = genuine(codec, entry, &sidecar, &plan, &fetched, rows)?;
    Ok((sidecar, Some(encoders)))
}

/// The fetched rows, each of which is the one that the sidecar names.
fn genuine(
    codec: &RowCodec,
    entry: &ShardEntry,
    sidecar: &Sidecar,
    plan: &RangePlan,
    fetched: &[bytes::Bytes],
    rows: &[u32],
) -> Result<Vec<RowEncoder>, LoadError> {
    let corrupt =
        |row: &u32| ShardError::Corrupt { shard: entry.id.short(), reason: format!("row {row} is another") };
    let mut encoders = Vec::with_capacity(rows.len());
    let mut canonical = Vec::new();
    for (row, batches) in rows.iter().zip(plan.decode(fetched)?) {
        let [batch] = &batches[..] else { return Err(corrupt(row).into()) };
        let encoder = codec.encoder(batch)?;
        canonical.clear();
        encoder.encode(0, &mut canonical)?;
        if RowDigest::of(&canonical) != sidecar.rows[*row as usize] {
            return Err(corrupt(row).into());
        }
        encoders.push(encoder);
    }
    Ok(encoders)
}

/// Whether it may be that the shard can be read whole all the same.
fn is_about_the_shard(error: &LoadError) -> bool {
    matches!(
        error,
        LoadError::Shard(_)
            | LoadError::Row(_)
            | LoadError::Origin(OriginError::Corrupt { .. } | OriginError::NotFound { .. })
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_never_costs_more_than_twice_the_best_way(
            row_bytes in 0u64..4 << 20, rows in 1u32..100_000, bytes in 1u64..64 << 20, asked in prop::collection::vec(1u64..50, 1..200),
        ) {
            let (mut spent, shard) = (Spent::none(1), Size { rows, bytes, row_bytes });
            let sidecar = REQUEST + u64::from(rows) * SIDECAR_ROW;
            let one_by_one: u64 = sidecar + asked.iter().map(|rows| rows * (row_bytes + REQUEST)).sum::<u64>();
            let mut cost = 0;
            for rows in &asked {
                if !spent.is_worthwhile(0, shard, *rows) {
                    // From now on it is here.
                    cost += shard.cost();
                    break;
                }
                cost += rows * (row_bytes + REQUEST) + if cost == 0 { sidecar } else { 0 };
            }
            prop_assert!(cost <= 2 * one_by_one.min(shard.cost()), "{cost} of {one_by_one} or {}", shard.cost());
        }
    }

    #[test]
    fn few_rows_of_a_large_shard_are_asked_for_and_a_small_shard_whole() {
        let mut spent = Spent::none(2);
        let large = Size { rows: 400, bytes: 60 << 20, row_bytes: 150_000 };
        assert!(spent.is_worthwhile(0, large, 1) && spent.is_worthwhile(0, large, 4));
        assert!(!spent.is_worthwhile(0, large, 60), "by now it pays to have all of it");
        assert!(spent.is_worthwhile(0, large, 1), "it was had, and is gone again");
        assert!(!spent.is_worthwhile(1, Size { rows: 7, bytes: 1 << 20, row_bytes: 150_000 }, 1));
    }
}
