//! Applies operations to numbers in files, for programs that compare them: see `tests/reference/audio.py`.
//!
//! Each line of the input is a request, `{"op", "args", "input", "channels", "rate", "bins", "draws", "output"}`, with the
//! input and the output as files of single floats. Each line of the output is `{"shape", "rate"}` or `{"error"}`.

use std::error::Error;
use std::io::{BufRead, Write};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shardd_audio::ops::{
    AmplitudeToDB, Fade, FrequencyMasking, LogMel, MFCC, MelScale, MelSpectrogram, MuLawEncoding, PadOrTrim,
    RandomTimeCrop, Resample, SpecAugment, Spectrogram, TimeMasking, Vol,
};
use shardd_audio::{DecodeOptions, Draw, Specgram, Waveform, decode};

type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    op: String,
    #[serde(default)]
    args: Value,
    input: String,
    #[serde(default = "one")]
    channels: usize,
    #[serde(default)]
    bins: usize,
    #[serde(default)]
    rate: u32,
    #[serde(default)]
    draws: Vec<f64>,
    output: String,
}

fn one() -> usize {
    1
}

/// The numbers of a request, one after the other.
struct Given(std::vec::IntoIter<f64>);

impl Draw for Given {
    fn uniform(&mut self) -> f64 {
        self.0.next().unwrap_or(0.0)
    }
}

/// Numbers, their shape and their rate.
type Made = (Vec<f32>, Vec<usize>, u32);

fn main() -> Outcome<()> {
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = match run(&request) {
            Ok((data, shape, rate)) => {
                let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
                std::fs::write(&request.output, bytes)?;
                json!({"shape": shape, "rate": rate})
            }
            Err(error) => json!({"error": error.to_string()}),
        };
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn arguments<T: DeserializeOwned>(request: &Request) -> Outcome<T> {
    let args = if request.args.is_null() { json!({}) } else { request.args.clone() };
    Ok(serde_json::from_value(args)?)
}

fn run(request: &Request) -> Outcome<Made> {
    let bytes = std::fs::read(&request.input)?;
    if request.op == "decode" {
        return Ok(of_waveform(decode(&bytes, &arguments::<DecodeOptions>(request)?)?));
    }
    let numbers: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let mut draw = Given(request.draws.clone().into_iter());
    if request.bins > 0 {
        let frames = numbers.len() / (request.channels * request.bins).max(1);
        let specgram = Specgram::new([request.channels, request.bins, frames], numbers)?;
        return on_specgram(request, specgram, &mut draw).map(of_specgram);
    }
    let samples = numbers.len() / request.channels;
    let channels = match samples {
        0 => vec![vec![]; request.channels],
        _ => numbers.chunks_exact(samples).map(<[f32]>::to_vec).collect(),
    };
    on_waveform(request, Waveform::new(channels, request.rate)?, &mut draw)
}

fn on_specgram(request: &Request, specgram: Specgram, draw: &mut Given) -> Outcome<Specgram> {
    Ok(match request.op.as_str() {
        "MelScale" => arguments::<MelScale>(request)?.apply(&specgram)?,
        "AmplitudeToDB" => arguments::<AmplitudeToDB>(request)?.apply(specgram)?,
        "FrequencyMasking" => arguments::<FrequencyMasking>(request)?.apply(specgram, draw)?,
        "TimeMasking" => arguments::<TimeMasking>(request)?.apply(specgram, draw)?,
        "SpecAugment" => arguments::<SpecAugment>(request)?.apply(specgram, draw)?,
        other => return Err(format!("no operation {other} on spectrograms").into()),
    })
}

fn on_waveform(request: &Request, waveform: Waveform, draw: &mut Given) -> Outcome<Made> {
    Ok(match request.op.as_str() {
        "Resample" => of_waveform(arguments::<Resample>(request)?.apply(&waveform)?),
        "Vol" => of_waveform(arguments::<Vol>(request)?.apply(waveform)?),
        "Fade" => of_waveform(arguments::<Fade>(request)?.apply(waveform)?),
        "PadOrTrim" => of_waveform(arguments::<PadOrTrim>(request)?.apply(waveform)?),
        "RandomTimeCrop" => of_waveform(arguments::<RandomTimeCrop>(request)?.apply(waveform, draw)?),
        "Spectrogram" => of_specgram(arguments::<Spectrogram>(request)?.apply(&waveform)?),
        "MelSpectrogram" => of_specgram(arguments::<MelSpectrogram>(request)?.apply(&waveform)?),
        "MFCC" => of_specgram(arguments::<MFCC>(request)?.apply(&waveform)?),
        "LogMel" => of_specgram(arguments::<LogMel>(request)?.apply(&waveform)?),
        "MuLawEncoding" => {
            let levels = arguments::<MuLawEncoding>(request)?.apply(&waveform)?;
            let data = levels.iter().flatten().map(|&level| level as f32).collect();
            (data, vec![levels.len(), waveform.samples()], waveform.rate())
        }
        other => return Err(format!("no operation {other} on waveforms").into()),
    })
}

fn of_waveform(waveform: Waveform) -> Made {
    let shape = vec![waveform.channels().len(), waveform.samples()];
    let rate = waveform.rate();
    (waveform.into_channels().concat(), shape, rate)
}

fn of_specgram(specgram: Specgram) -> Made {
    let shape = specgram.shape().to_vec();
    (specgram.into_data(), shape, 0)
}
