//! Times decoding and the operations, on one thread: see `tests/reference/audio_speed.py`.
//!
//! Decodes each file of a folder. The operations get the file `16000.wav`, and `44100.wav` to resample.

use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use shardd_audio::ops::mel::{Norm, Scale};
use shardd_audio::ops::{AmplitudeToDB, LogMel, MFCC, MelSpectrogram, Resample, Spectrogram};
use shardd_audio::{DecodeOptions, decode};

/// The shortest of many runs, in milliseconds.
fn time<T>(mut run: impl FnMut() -> T) -> f64 {
    let mut best = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 1.0 {
        let run_start = Instant::now();
        black_box(run());
        best = best.min(run_start.elapsed().as_secs_f64() * 1e3);
    }
    best
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: speed FOLDER")?);
    let mut times = BTreeMap::new();
    let options = DecodeOptions::default();
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        let bytes = std::fs::read(&path)?;
        decode(&bytes, &options)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        times.insert(format!("decode {name}"), time(|| decode(&bytes, &options)));
    }
    let speech = decode(&std::fs::read(folder.join("16000.wav"))?, &options)?;
    let music = decode(&std::fs::read(folder.join("44100.wav"))?, &options)?;

    let spectrogram = Spectrogram { hop_length: Some(160), ..Spectrogram::default() }.plan()?;
    times.insert("Spectrogram".into(), time(|| spectrogram.apply(&speech)));
    let mel = MelSpectrogram { hop_length: Some(160), n_mels: 80, ..MelSpectrogram::default() };
    let plan = mel.plan()?;
    times.insert("MelSpectrogram".into(), time(|| plan.apply(&speech)));
    for n_fft in [512, 1024] {
        let plan = MelSpectrogram { n_fft, ..mel.clone() }.plan()?;
        times.insert(format!("MelSpectrogram n_fft {n_fft}"), time(|| plan.apply(&speech)));
    }
    let decibels = AmplitudeToDB { top_db: Some(80.0), ..AmplitudeToDB::default() };
    times.insert("MelSpectrogram, AmplitudeToDB".into(), time(|| decibels.apply(plan.apply(&speech)?)));
    let slaney = MelSpectrogram { norm: Some(Norm::Slaney), mel_scale: Scale::Slaney, ..mel };
    let plan = slaney.plan()?;
    times.insert("MelSpectrogram slaney".into(), time(|| plan.apply(&speech)));
    let plan = LogMel::default().plan()?;
    times.insert("LogMel".into(), time(|| plan.apply(&speech)));
    let plan = MFCC::default().plan()?;
    times.insert("MFCC".into(), time(|| plan.apply(&speech)));

    for new_freq in [16_000, 48_000] {
        let plan = Resample { new_freq, ..Resample::default() }.plan(44_100)?;
        times.insert(format!("Resample 44100 to {new_freq}"), time(|| plan.apply(&music)));
    }
    times.insert("Resample 44100 to 16000, kernels".into(), time(|| Resample::default().plan(44_100)));
    println!("{}", serde_json::to_string(&times)?);
    Ok(())
}
