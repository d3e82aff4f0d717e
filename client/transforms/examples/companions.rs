//! Moves pictures and their companions as lines of JSON ask, for programs that compare the numbers: `tests/companions.py`.
//!
//! A line has a `chain`, the `shape` of the picture and its `pixels` (channels last), a `place` of seed, epoch and position,
//! the companions as `given`, by their names, and the `stage` that is wanted. The answer is a line with that stage.

use std::collections::BTreeMap;
use std::io::{BufRead, BufWriter, Write};

use serde::{Deserialize, Serialize};
use shardd_transforms::{Chain, Companion, Given, Input, Layout, Place, Transform, Value};

#[derive(Deserialize)]
struct Request {
    chain: Chain,
    shape: [usize; 3],
    pixels: Vec<u8>,
    place: [u64; 3],
    given: BTreeMap<String, Numbers>,
    stage: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Numbers {
    Boxes(Vec<f32>),
    KeyPoints(Vec<f32>),
    Mask { shape: Vec<usize>, bytes: Vec<u8> },
    Labels(usize),
}

#[derive(Serialize)]
struct Answer {
    shape: [usize; 3],
    pixels: Vec<u8>,
    kept: Vec<usize>,
    moved: BTreeMap<String, Numbers>,
}

fn given(numbers: &Numbers) -> Given<'_> {
    match numbers {
        Numbers::Boxes(boxes) => Given::Boxes(boxes),
        Numbers::KeyPoints(points) => Given::KeyPoints(points),
        Numbers::Mask { shape, bytes } => Given::Pixels { shape, bytes },
        Numbers::Labels(count) => Given::Labels(*count),
    }
}

fn numbers(companion: Companion, size: [usize; 2], kept: usize) -> Numbers {
    match companion {
        Companion::Boxes(boxes) => Numbers::Boxes(boxes.boxes.into_flattened()),
        Companion::KeyPoints(points) => Numbers::KeyPoints(points.points.into_flattened()),
        Companion::Mask(mask) => {
            let planes = mask.is_stack().then_some(mask.planes().len());
            Numbers::Mask { shape: planes.into_iter().chain(size).collect(), bytes: mask.into_pixels() }
        }
        Companion::Labels => Numbers::Labels(kept),
    }
}

fn answer(request: Request) -> Result<Answer, Box<dyn std::error::Error>> {
    let input = Input::Pixels { shape: request.shape, layout: Layout::ChannelsLast };
    let names: Vec<String> = request.chain.companions.keys().cloned().collect();
    let transform = Transform::new(request.chain, input)?;
    let [seed, epoch, position] = request.place;
    let all: Vec<Given<'_>> = request.given.values().map(given).collect();
    let mut stages = transform.stages_with(&request.pixels, &all, Place { seed, epoch, position })?;
    let stage = stages.swap_remove(request.stage);
    let (size, kept) = (stage.companions.size, stage.companions.kept);
    let moved = stage.companions.all.into_iter().map(|companion| numbers(companion, size, kept.len()));
    let Value::Bytes(image) = stage.value else { return Err("ask for a stage of bytes".into()) };
    let (shape, pixels) = (image.shape(), image.into_pixels());
    Ok(Answer { shape, pixels, moved: names.into_iter().zip(moved).collect(), kept })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let answer = answer(serde_json::from_str(&line?)?)?;
        serde_json::to_writer(&mut out, &answer)?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}
