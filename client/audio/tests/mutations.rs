//! Broken files: each becomes an error or a waveform, within the limits of memory and time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use shardd_audio::decode::Truncated;
use shardd_audio::{Chain, DecodeError, DecodeOptions, Input, Transform, decode, info};
use shardd_transforms::Place;

/// The system's allocator, with a count of the bytes that are taken, and of the most at one time.
struct Counting;

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let taken = TAKEN.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(taken, Relaxed);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer came from the system, by `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Mutations of each format; set `MUTATIONS` to try more.
const MUTATIONS: u64 = 20_000;

/// Numbers that a waveform may have here: 4 MiB.
const MAX_SAMPLES: u64 = 1 << 20;

/// A waveform twice, while it grows; and what decoders take for themselves.
const MOST_BYTES: usize = 3 * 4 * MAX_SAMPLES as usize + (24 << 20);

/// Kernels that are made while others are kept; and what decoders take for themselves.
const MOST_KERNELS: usize = 2 * (64 << 20) + (24 << 20);

/// Of this many broken files, one goes through chains, too: kernels for a damaged rate take long.
const TO_CHAINS: u64 = 20;

const MOST_TIME: Duration = Duration::from_secs(5);

/// SplitMix64 (Steele et al., 2014).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, count: usize) -> usize {
        (self.bits() % count.max(1) as u64) as usize
    }
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

/// One to eight changes. Half of the first ones are near the start, where the headers are.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(8) {
        let range = if random.below(2) == 0 { bytes.len().min(200) } else { bytes.len() };
        let at = random.below(range);
        let len = random.below(40).min(bytes.len().saturating_sub(at));
        match random.below(8) {
            0..=2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            3 if at < bytes.len() => bytes[at] = [0, 0x7F, 0x80, 0xFF][random.below(4)],
            4 => bytes[at..at + len].fill([0, 0xFF][random.below(2)]),
            5 => drop(bytes.drain(at..at + len)),
            6 => {
                let copy = bytes[at..at + len].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            7 if random.below(4) == 0 => bytes.truncate(at),
            _ => {}
        }
    }
}

/// Makes the checksums of Ogg pages right again, so that more than the page reader sees the changes.
fn repair_ogg(bytes: &mut [u8]) {
    let mut at = 0;
    while at + 27 <= bytes.len() {
        if &bytes[at..at + 4] != b"OggS" {
            at += 1;
            continue;
        }
        let segments = usize::from(bytes[at + 26]);
        let Some(table) = bytes.get(at + 27..at + 27 + segments) else { return };
        let end = at + 27 + segments + table.iter().map(|&len| usize::from(len)).sum::<usize>();
        if end > bytes.len() {
            return;
        }
        bytes[at + 22..at + 26].fill(0);
        let crc = bytes[at..end].iter().fold(0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
                crc << 1 ^ if crc >> 31 == 1 { 0x04C1_1DB7 } else { 0 }
            })
        });
        bytes[at + 22..at + 26].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

/// Waveforms, errors and panics of decoders, of which the crate makes errors.
#[derive(Default, Debug)]
struct Count {
    waveforms: u64,
    errors: u64,
    panics: u64,
    most_bytes: usize,
    slowest: Duration,
}

fn try_one(bytes: &[u8], options: &DecodeOptions, count: &mut Count) {
    let before = TAKEN.load(Relaxed);
    MOST.store(before, Relaxed);
    let start = Instant::now();
    let header = info(bytes);
    let decoded = decode(bytes, options);
    let elapsed = start.elapsed();
    let taken = MOST.load(Relaxed).saturating_sub(before);
    count.most_bytes = count.most_bytes.max(taken);
    count.slowest = count.slowest.max(elapsed);
    assert!(elapsed < MOST_TIME, "{elapsed:?}");
    assert!(taken <= MOST_BYTES, "{taken} bytes");
    for error in [header.err(), decoded.as_ref().err().cloned()].into_iter().flatten() {
        if matches!(&error, DecodeError::Broken { detail, .. } if detail.contains("panicked")) {
            count.panics += 1;
        }
    }
    match decoded {
        Ok(waveform) => {
            assert!(waveform.samples() * waveform.channels().len() <= MAX_SAMPLES as usize);
            count.waveforms += 1;
        }
        Err(_) => count.errors += 1,
    }
}

/// Chains whose first operation cuts, or needs the whole.
fn chains() -> [Transform; 2] {
    [r#""RandomTimeCrop", "pad": true"#, r#""Vol", "gain": 0.5}, {"type": "PadOrTrim""#].map(|first| {
        let chain: Chain = format!(
            r#"{{"audio": {{"sample_rate": 16000, "channels": 1, "max_samples": {MAX_SAMPLES}}}, "transforms": [
                {{"type": {first}, "length": {{"samples": 4000}}}}, {{"type": "LogMel"}}
            ]}}"#
        )
        .parse()
        .unwrap();
        Transform::new(chain, Input::Encoded).unwrap()
    })
}

fn try_chain(bytes: &[u8], transform: &Transform, position: u64) {
    let mut out = vec![0; transform.bytes()];
    let before = TAKEN.load(Relaxed);
    MOST.store(before, Relaxed);
    let start = Instant::now();
    let done = transform.apply(bytes, Place { seed: 1, epoch: 2, position }, &mut out);
    let elapsed = start.elapsed();
    let taken = MOST.load(Relaxed).saturating_sub(before);
    assert!(elapsed < MOST_TIME, "{elapsed:?}");
    assert!(taken <= transform.largest() as usize + MOST_KERNELS, "{taken} bytes");
    assert!(done.is_ok() || out.iter().all(|&byte| byte == 0));
}

/// One test, for the count of bytes is of the whole process.
#[test]
fn broken_files_become_errors_or_waveforms_within_the_limits() {
    // Panics inside decoders are few: their places are of use, their backtraces are not.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let mutations = std::env::var("MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(MUTATIONS);
    let formats: [(&str, &[&str]); 4] = [
        ("wav", &["u8.wav", "s16.wav", "s24.wav", "s32.wav", "f32.wav", "f64.wav", "rf64.wav"]),
        ("flac", &["s16.flac", "s24.flac"]),
        ("mp3", &["stereo.mp3", "mono.mp3"]),
        ("ogg", &["stereo.ogg", "opus.ogg", "stereo.ogg"]),
    ];
    let chains = chains();
    for (format, names) in formats {
        let files: Vec<Vec<u8>> = names.iter().map(|name| fixture(name)).collect();
        let mut random = Random(41);
        let mut count = Count::default();
        for round in 0..mutations {
            let mut bytes = files[random.below(files.len())].clone();
            mutate(&mut bytes, &mut random);
            if format == "ogg" && random.below(8) != 0 {
                repair_ogg(&mut bytes);
            }
            let truncated = if round % 2 == 0 { Truncated::Raise } else { Truncated::Keep };
            let options = DecodeOptions { truncated, max_samples: MAX_SAMPLES, ..DecodeOptions::default() };
            try_one(&bytes, &options, &mut count);
            if round % TO_CHAINS == 0 {
                chains.iter().for_each(|chain| try_chain(&bytes, chain, round));
            }
        }
        println!("{format}: {count:?}");
    }
}
