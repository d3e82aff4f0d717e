//! Small sounds and numbers that torchaudio and libsndfile made: see `tests/fixtures.py`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use shardd_audio::ops::{
    AmplitudeToDB, Fade, MFCC, MelSpectrogram, MuLawEncoding, Resample, Spectrogram, Vol,
};
use shardd_audio::{DecodeError, DecodeOptions, Specgram, Waveform, decode, info};

#[derive(Deserialize)]
struct Case {
    op: String,
    args: Value,
    rate: u32,
    channels: usize,
    samples: usize,
    shape: Vec<usize>,
    numbers: Vec<f64>,
}

#[derive(Deserialize)]
struct Decoded {
    rate: u32,
    shape: Vec<usize>,
    every: usize,
    numbers: Vec<f64>,
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&fixture(name)).unwrap()
}

/// The same numbers as `sound` in `tests/fixtures.py`.
fn sound(channels: usize, samples: usize) -> Vec<Vec<f32>> {
    let number = |at: usize| {
        let [noise, saw] = [(at * 7919 % 2003) as f32 - 1001.0, (at * 31 % 1024) as f32 - 512.0];
        noise / 4096.0 + saw / 1024.0
    };
    (0..channels).map(|channel| (channel * samples..(channel + 1) * samples).map(number).collect()).collect()
}

fn args<T: DeserializeOwned>(case: &Case) -> T {
    serde_json::from_value(case.args.clone()).unwrap()
}

fn of_waveform(waveform: Waveform) -> (Vec<usize>, Vec<f32>) {
    (vec![waveform.channels().len(), waveform.samples()], waveform.into_channels().concat())
}

fn of_specgram(specgram: Specgram) -> (Vec<usize>, Vec<f32>) {
    (specgram.shape().to_vec(), specgram.into_data())
}

fn apply(case: &Case) -> (Vec<usize>, Vec<f32>) {
    let channels = sound(case.channels, case.samples);
    if case.op == "AmplitudeToDB" {
        let powers = channels[0].iter().map(|x| x.max(0.0).powi(4)).collect();
        return of_specgram(
            args::<AmplitudeToDB>(case).apply(Specgram::new([1, 8, 8], powers).unwrap()).unwrap(),
        );
    }
    let waveform = Waveform::new(channels, case.rate).unwrap();
    match case.op.as_str() {
        "Resample" => of_waveform(args::<Resample>(case).apply(&waveform).unwrap()),
        "Vol" => of_waveform(args::<Vol>(case).apply(waveform).unwrap()),
        "Fade" => of_waveform(args::<Fade>(case).apply(waveform).unwrap()),
        "Spectrogram" => of_specgram(args::<Spectrogram>(case).apply(&waveform).unwrap()),
        "MelSpectrogram" => of_specgram(args::<MelSpectrogram>(case).apply(&waveform).unwrap()),
        "MFCC" => of_specgram(args::<MFCC>(case).apply(&waveform).unwrap()),
        "MuLawEncoding" => {
            let levels = args::<MuLawEncoding>(case).apply(&waveform).unwrap();
            (case.shape.clone(), levels.iter().flatten().map(|&level| level as f32).collect())
        }
        other => panic!("no test of {other}"),
    }
}

#[test]
fn operations_make_the_numbers_of_torchaudio() {
    for case in read::<Vec<Case>>("expected.json") {
        let (shape, numbers) = apply(&case);
        assert_eq!(shape, case.shape, "{} {}", case.op, case.args);
        let scale = case.numbers.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        for (at, (&got, &expected)) in numbers.iter().zip(&case.numbers).enumerate() {
            let difference = (f64::from(got) - expected).abs() / scale;
            assert!(difference <= 1e-5, "{} {}: number {at} is {got}, not {expected}", case.op, case.args);
        }
    }
}

/// A digest of the bits, to be equal on all processors.
fn digest(numbers: impl IntoIterator<Item = f32>) -> u64 {
    numbers.into_iter().fold(0xCBF2_9CE4_8422_2325, |digest: u64, x| {
        (digest ^ u64::from(x.to_bits())).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

#[test]
fn operations_have_the_same_bits_everywhere() {
    let digests: Vec<u64> =
        read::<Vec<Case>>("expected.json").iter().map(|case| digest(apply(case).1)).collect();
    assert_eq!(digests, DIGESTS, "{digests:#018X?}");
}

/// Of each case; found on x86-64.
const DIGESTS: [u64; 15] = [
    0x0A14_542D_5158_CACE,
    0xF431_E562_E656_8E32,
    0x1413_4C1F_2624_060B,
    0x5F8B_2053_C726_49B8,
    0x14E6_ADD6_27F0_A4B0,
    0x6589_D55B_CCAB_6C82,
    0x9863_5CDE_02EE_AC9E,
    0x719F_4533_D2B7_F933,
    0xD95E_090E_BE12_2741,
    0x47DC_CEE7_006B_B5BF,
    0x40EA_3173_3F66_A1C1,
    0x89EC_984E_D3C8_73CB,
    0xDAE3_9346_02CD_FC85,
    0x8908_ED72_C957_AC55,
    0x591A_EAC8_80AF_51F5,
];

#[test]
fn files_decode_to_the_numbers_of_libsndfile() {
    for (name, expected) in read::<BTreeMap<String, Decoded>>("decoded.json") {
        let bytes = fixture(&name);
        let waveform = decode(&bytes, &DecodeOptions::default()).unwrap();
        assert_eq!(vec![waveform.channels().len(), waveform.samples()], expected.shape, "{name}");
        assert_eq!(waveform.rate(), expected.rate, "{name}");
        let header = info(&bytes).unwrap();
        assert_eq!(
            (header.channels, header.rate, header.samples),
            (expected.shape[0], expected.rate, Some(expected.shape[1] as u64)),
            "{name}"
        );
        let exact = !name.ends_with("mp3") && !name.ends_with("ogg");
        let numbers = waveform.into_channels().concat();
        for (&got, &number) in numbers.iter().step_by(expected.every).zip(&expected.numbers) {
            let difference = (f64::from(got) - number).abs();
            assert!(difference <= if exact { 1e-8 } else { 2e-6 }, "{name}: {got}, not {number}");
        }
    }
}

#[test]
fn opus_is_refused_by_name() {
    let error = decode(&fixture("opus.ogg"), &DecodeOptions::default()).unwrap_err();
    assert!(
        matches!(error, DecodeError::Unsupported { .. }) && error.to_string().contains("Opus"),
        "{error}"
    );
}
