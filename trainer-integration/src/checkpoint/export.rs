//! The weights of a checkpoint as one file, byte for byte the one that the training itself saves: parameters, and running numbers averaged over
//! the virtual ranks in the order of the tree. A few objects are in memory at a time, however large the model is.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use tokio::task::JoinSet;

use super::CheckpointError;
use super::checkpoint_store::CheckpointStore;
use super::codec::decode;
use super::layout::{Kind, Layout};
use super::manifest::{CheckpointId, Manifest};
use super::objects::{Object, objects};
use super::pieces::Piece;
use super::plan::within;
use crate::nn::lora::{is_adapter, merge};
use crate::reduce::Partials;
use crate::weights::safetensors_header;

/// The part of a checkpoint that goes to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exported {
    /// All parameters, and the averages of running statistics.
    #[default]
    All,
    /// The same with each adapter ([`Lora`](crate::nn::Lora)) added to the weight of its layer: the file of a model without adapters.
    Merged,
    /// The parameters of adapters alone.
    Adapters,
}

/// Objects that are read at once.
const AT_ONCE: usize = 4;

/// Where the numbers of a checkpoint go in a file.
struct Places {
    header: Vec<u8>,
    /// By block, where in the file each stretch of its weights goes: numbers of the block, and the first byte.
    weights: Vec<Vec<(Range<usize>, u64)>>,
    /// The same of the running numbers, one after the other.
    running: Vec<(Range<usize>, u64)>,
    length: u64,
}

impl Places {
    fn of(layout: &Layout, what: Exported) -> Result<Places, CheckpointError> {
        let is_written = |name: &str| match what {
            Exported::All => true,
            Exported::Merged => !is_adapter(name),
            Exported::Adapters => is_adapter(name),
        };
        let parameters = layout.blocks.iter().flat_map(|block| &block.parameters);
        let buffers = layout.blocks.iter().flat_map(|block| &block.buffers);
        let tensors: Vec<(&str, &[usize])> = (parameters.chain(buffers))
            .filter(|(name, _)| is_written(name))
            .map(|(name, shape)| (&name[..], &shape[..]))
            .collect();
        let (header, starts) = safetensors_header(&tensors)?;
        let base = header.len() as u64;
        let mut starts = starts.into_iter().map(|start| base + start as u64);
        let mut place = |shapes: &[(String, Vec<usize>)], first: usize| {
            let mut next = first;
            let places = shapes.iter().filter_map(|(name, shape)| {
                let range = next..next + shape.iter().product::<usize>();
                next = range.end;
                is_written(name).then(|| (range, starts.next().expect("a place for each")))
            });
            places.collect::<Vec<_>>()
        };
        let weights = layout.blocks.iter().map(|block| place(&block.parameters, 0)).collect();
        let mut running: Vec<(Range<usize>, u64)> = Vec::new();
        let mut first = 0;
        for block in &layout.blocks {
            running.extend(place(&block.buffers, first));
            first += block.statistics;
        }
        let count: usize = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        Ok(Places { length: base + (count * size_of::<f32>()) as u64, header, weights, running })
    }

    /// Where the file has this range of a block's weights, if it is one of its tensors.
    fn tensor(&self, block: usize, range: &Range<usize>) -> Option<u64> {
        let mut tensors = self.weights[block].iter();
        tensors.find_map(|(tensor, start)| (tensor == range).then_some(*start))
    }
}

/// The adapters of a checkpoint, which are to be added to the weights of their layers.
struct Merging {
    scale: f32,
    adapters: Vec<Adapter>,
}

/// The adapter of a layer.
struct Adapter {
    block: usize,
    rank: usize,
    /// Where the block has the layer's weight.
    weight: Range<usize>,
    /// The two matrices: where the block has each, and its numbers once they are read.
    matrices: [(Range<usize>, Vec<f32>); 2],
}

impl Merging {
    /// The adapters of this training; `None` if it has none.
    fn of(manifest: &Manifest) -> Option<Merging> {
        #[derive(serde::Deserialize)]
        struct Setting {
            rank: usize,
            alpha: f32,
        }
        let Setting { rank, alpha } = serde_json::from_str(manifest.settings.get("lora")?).ok()?;
        let mut adapters = Vec::new();
        for (block, layout) in manifest.layout.blocks.iter().enumerate() {
            let mut end = 0;
            let mut ranges = HashMap::new();
            for (name, shape) in &layout.parameters {
                let start = end;
                end += shape.iter().product::<usize>();
                ranges.insert(&name[..], start..end);
            }
            for (name, _) in &layout.parameters {
                let Some(layer) = name.strip_suffix(".lora_a") else { continue };
                let of_layer = |name: &str| ranges.get(&format!("{layer}.{name}")[..]).cloned();
                let matrix = |range: Range<usize>| (range.clone(), vec![0.0; range.len()]);
                let (first, second) = (of_layer("lora_a")?, of_layer("lora_b")?);
                let weight = of_layer("weight")?;
                let is_product = rank > 0 && first.len() / rank * (second.len() / rank) == weight.len();
                let fits = is_product && first.len() % rank == 0 && second.len() % rank == 0;
                let adapter = Adapter { block, rank, weight, matrices: [matrix(first), matrix(second)] };
                adapters.push(Some(adapter).filter(|_| fits)?);
            }
        }
        Some(Merging { scale: alpha / rank as f32, adapters })
    }

    /// Takes the numbers of adapters from a piece.
    fn take(&mut self, piece: &Piece, numbers: &[f32]) {
        for (at, stretch) in within(piece, &(0..numbers.len())) {
            let of_block = self.adapters.iter_mut().filter(|adapter| adapter.block == stretch.block);
            for (matrix, values) in of_block.flat_map(|adapter| &mut adapter.matrices) {
                let (from, to) = (matrix.start.max(stretch.range.start), matrix.end.min(stretch.range.end));
                if stretch.kind == Kind::Weights && from < to {
                    let found = &numbers[at + from - stretch.range.start..at + to - stretch.range.start];
                    values[from - matrix.start..to - matrix.start].copy_from_slice(found);
                }
            }
        }
    }

    /// Adds the adapters to the weights in the file, one layer at a time.
    fn merge(&self, file: &mut File, places: &Places) -> io::Result<()> {
        for Adapter { block, rank, weight, matrices: [(_, first), (_, second)] } in &self.adapters {
            let start = places.tensor(*block, weight).expect("weights are written");
            let mut numbers = vec![0.0; weight.len()];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(bytemuck::cast_slice_mut(&mut numbers))?;
            merge(&mut numbers, first, second, *rank, self.scale);
            write_at(file, start, &numbers)?;
        }
        Ok(())
    }
}

/// Writes the weights of a checkpoint, the newest if no step is named, to a file, which is replaced by all of them or left as it was. Which
/// checkpoint it was.
///
/// # Errors
/// When there is no such checkpoint, it is damaged or does not say what its running numbers are called (format 1), or the file cannot be
/// written.
pub fn export(
    shelf: &CheckpointStore,
    step: Option<u64>,
    path: &Path,
) -> Result<CheckpointId, CheckpointError> {
    export_as(shelf, step, Exported::All, path)
}

/// As [`export`], with the adapters of a model merged into its weights, or alone. Of adapters that are merged, the matrices and one
/// layer's weight are in memory besides.
///
/// # Errors
/// As [`export`], and when the training has no adapters.
pub fn export_as(
    shelf: &CheckpointStore,
    step: Option<u64>,
    what: Exported,
    path: &Path,
) -> Result<CheckpointId, CheckpointError> {
    let listed = shelf.list()?;
    let Some(&id) = listed.iter().find(|id| step.is_none_or(|step| id.step == step)) else {
        let steps: Vec<String> = listed.iter().map(|id| id.step.to_string()).collect();
        let present = if steps.is_empty() { "none".to_owned() } else { steps.join(", ") };
        let wanted = step.map_or_else(|| "at all".to_owned(), |step| step.to_string());
        let (run, store) = (shelf.run().to_string(), shelf.store().to_owned());
        return Err(CheckpointError::NoSuch { wanted, run, store, present });
    };
    let manifest = shelf.manifest(id)?;
    let layout = &manifest.layout;
    if layout.blocks.iter().any(|block| block.statistics > 0 && block.buffers.is_empty()) {
        return Err(CheckpointError::Unnamed { id: id.short(), format: manifest.format });
    }
    let mut merging = Merging::of(&manifest);
    if what != Exported::All && merging.is_none() {
        return Err(CheckpointError::NoAdapters { id: id.short() });
    }
    let places = Places::of(layout, what)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let refused = |source| CheckpointError::File { path: path.display().to_string(), source };
    let mut written = || {
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(true).open(&part).map_err(refused)?;
        let head = file.write_all(&places.header).and_then(|()| file.set_len(places.length));
        head.map_err(refused)?;
        let mut take = |piece: &Piece, numbers: &[f32]| {
            if let (Some(merging), Exported::Merged) = (&mut merging, what) {
                merging.take(piece, numbers);
            }
        };
        shelf.handle().block_on(write(shelf, id, &manifest, &places, &mut file, path, &mut take))?;
        if let (Some(merging), Exported::Merged) = (&merging, what) {
            merging.merge(&mut file, &places).map_err(refused)?;
        }
        // It is kept once it is on the disk.
        file.sync_all().and_then(|()| std::fs::rename(&part, path)).map_err(refused)
    };
    written().inspect_err(|_| {
        let _ = std::fs::remove_file(&part); // may not even exist
    })?;
    Ok(id)
}

async fn write(
    shelf: &CheckpointStore,
    id: CheckpointId,
    manifest: &Manifest,
    places: &Places,
    file: &mut File,
    path: &Path,
    take: &mut dyn FnMut(&Piece, &[f32]),
) -> Result<(), CheckpointError> {
    let refused = |source| CheckpointError::File { path: path.display().to_string(), source };
    let is_wanted = |object: &Object| {
        object.statistics.is_some_and(|(_, count)| count > 0)
            || object.piece().iter().any(|stretch| stretch.kind == Kind::Weights)
    };
    let mut wanted = objects(manifest).into_iter().filter(is_wanted);
    let mut sums = Partials::<f32>::new(manifest.virtual_ranks);
    let mut reading = JoinSet::new();
    // Statistics are added up in the order of virtual ranks, in which they are read, but perhaps not there.
    let mut early: HashMap<u32, Vec<f32>> = HashMap::new();
    let mut next_rank = 0;
    loop {
        // Never none at all: one that is waited for is being read.
        while (reading.len() + early.len() < AT_ONCE || reading.is_empty())
            && let Some(object) = wanted.next()
        {
            let store = shelf.objects();
            reading.spawn(async move {
                let bytes = store.read_part(object.part).await?;
                let damaged = |reason| CheckpointError::Damaged { id: id.short(), reason };
                decode(&bytes, &object).map_err(damaged).map(|decoded| (object, decoded))
            });
        }
        let Some(done) = reading.join_next().await else { break };
        let (object, (numbers, own)) = done.expect("reading neither panics nor is given up alone")?;
        let piece = object.piece();
        write_piece(file, places, &piece, &numbers).map_err(refused)?;
        take(&piece, &numbers);
        if let Some((virtual_rank, _)) = object.statistics {
            early.insert(virtual_rank, own);
            while let Some(own) = early.remove(&next_rank) {
                sums.push(next_rank, own);
                next_rank += 1;
            }
        }
    }
    if manifest.layout.statistics() > 0 {
        let damaged = |_| CheckpointError::Damaged {
            id: id.short(),
            reason: "running statistics of some virtual ranks are missing".to_owned(),
        };
        let total = sums.into_total().map_err(damaged)?;
        let averages: Vec<f32> = total.iter().map(|sum| sum / manifest.virtual_ranks as f32).collect();
        for (range, start) in &places.running {
            write_at(file, *start, &averages[range.clone()]).map_err(refused)?;
        }
    }
    Ok(())
}

/// Writes what of a piece are weights.
fn write_piece(file: &mut File, places: &Places, piece: &Piece, numbers: &[f32]) -> io::Result<()> {
    for (at, stretch) in within(piece, &(0..numbers.len())) {
        if stretch.kind != Kind::Weights {
            continue;
        }
        let range = &stretch.range;
        for (tensor, start) in &places.weights[stretch.block] {
            let (from, to) = (tensor.start.max(range.start), tensor.end.min(range.end));
            if from < to {
                let numbers = &numbers[at + from - range.start..at + to - range.start];
                write_at(file, start + ((from - tensor.start) * size_of::<f32>()) as u64, numbers)?;
            }
        }
    }
    Ok(())
}

fn write_at(file: &mut File, start: u64, numbers: &[f32]) -> io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    file.write_all(bytemuck::cast_slice(numbers))
}
