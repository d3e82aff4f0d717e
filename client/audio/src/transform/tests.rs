//! Laws and stories of chains.

use proptest::prelude::*;
use shardd_transforms::{Draws, OnError};

use super::*;
use crate::fixtures::FILES;

/// A chain of every kind of operation.
const ALL: &str = r#"{"audio": {"sample_rate": 8000, "channels": 1}, "transforms": [
    {"type": "RandomTimeCrop", "length": {"samples": 2000}, "pad": true, "pad_mode": "circular"},
    {"type": "RandomApply", "transforms": [{"type": "Vol", "gain": -6, "gain_type": "db"}, {"type": "Fade", "fade_in_len": 90}]},
    {"type": "RandomChoice", "transforms": [{"type": "Vol", "gain": 0.3}, {"type": "Identity"}]},
    {"type": "RandomOrder", "transforms": [{"type": "Vol", "gain": 0.5}, {"type": "Fade", "fade_out_len": 50}]},
    {"type": "MelSpectrogram", "sample_rate": 8000, "n_fft": 128, "n_mels": 20},
    {"type": "AmplitudeToDB", "top_db": 80},
    {"type": "FrequencyMasking", "freq_mask_param": 6},
    {"type": "TimeMasking", "time_mask_param": 9},
    {"type": "SpecAugment", "n_time_masks": 2, "time_mask_param": 4, "n_freq_masks": 2, "freq_mask_param": 4},
    {"type": "Normalize", "mean": -20, "std": 15}
]}"#;

const PLACE: Place = Place { seed: 5, epoch: 2, position: 9 };

fn transform(chain: &str, input: Input) -> Transform {
    Transform::new(chain.parse().expect("a chain"), input).expect("a chain for these sounds")
}

fn encoded(chain: &str) -> Transform {
    transform(chain, Input::Encoded)
}

/// For raw samples of one channel at 8 kHz.
fn raw(transforms: &str, samples: usize) -> Transform {
    let chain = format!(r#"{{"audio": {{"rate": 8000}}, "transforms": {transforms}}}"#);
    transform(&chain, Input::of_shape(&[samples], Number::Float32).expect("a sound"))
}

fn refused(chain: &str, input: Input) -> String {
    let made = chain.parse::<Chain>().and_then(|chain| Transform::new(chain, input));
    made.expect_err("a refusal").to_string()
}

fn made(transform: &Transform, sample: &[u8], place: Place) -> Vec<u8> {
    let mut out = vec![0xAA; transform.bytes()];
    transform.apply(sample, place, &mut out).expect("a sound");
    out
}

fn failed(transform: &Transform, sample: &[u8]) -> SampleError {
    transform.apply(sample, PLACE, &mut vec![0; transform.bytes()]).expect_err("an error")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    Number::Float32.floats(bytes)
}

fn bytes_of(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn numbers_of(value: &Value) -> Vec<f32> {
    value.pieces().flatten().copied().collect()
}

/// Whole numbers of 16 bits.
fn noise(count: usize, seed: u64) -> Vec<i16> {
    let mut draws = Draws::new(Place { seed, epoch: 0, position: 0 }, 0);
    (0..count).map(|_| draws.bits() as i16).collect()
}

fn little_endian(numbers: &[i16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A WAV file of these samples, in which channels take turns.
fn wav(rate: u32, channels: u16, numbers: &[i16]) -> Vec<u8> {
    let data = little_endian(numbers);
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0".to_vec();
    file.extend(channels.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend((rate * u32::from(channels) * 2).to_le_bytes());
    file.extend((channels * 2).to_le_bytes());
    file.extend(b"\x10\0data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

proptest! {
    #[test]
    fn a_sound_follows_from_its_sample_and_its_place_alone(
        seed: u64, epoch in 0u64..9, position in 0u64..1_000_000, len in 1usize..6000,
    ) {
        let transform = encoded(ALL);
        let place = Place { seed, epoch, position };
        let sample = wav(11_025, 2, &noise(2 * len, position));
        let sound = made(&transform, &sample, place);
        // Others beforehand make no difference, nor does the thread.
        made(&transform, &wav(7000, 1, &noise(99, 1)), Place { position: position + 1, ..place });
        let other = std::thread::scope(|scope| {
            scope.spawn(|| made(&transform.clone(), &sample, place)).join().expect("no panic")
        });
        prop_assert_eq!(&other, &sound);
        prop_assert_eq!(&made(&encoded(ALL), &sample, place), &sound);
        let crop = raw(r#"[{"type": "RandomTimeCrop", "length": {"samples": 5}}]"#, 1 << 20);
        let ramp = bytes_of((0..1 << 20).map(|at| at as f32));
        let sound = made(&crop, &ramp, place);
        for other in [
            Place { seed: seed ^ 1, ..place }, Place { epoch: epoch + 1, ..place }, Place { position: position + 1, ..place },
        ] {
            prop_assert_ne!(&made(&crop, &ramp, other), &sound);
        }
    }

    #[test]
    fn the_last_stage_is_in_the_batch_though_a_part_alone_is_decoded(
        rate in 1u32..40, new_rate in 1u32..40, unit in 300u32..1000, resample: bool, len in 1usize..9000, length in 1usize..3000,
        first in 0usize..4, circular: bool, start in 0usize..50, limit in 1usize..9000, seed: u64,
    ) {
        // Rates with a common divisor have periods that are shorter than a sound.
        let [rate, new_rate] = [rate, new_rate].map(|rate| rate * unit);
        let pad_mode = if circular { "circular" } else { "constant" };
        let op = [
            r#""RandomTimeCrop", "pad": true"#, r#""PadOrTrim", "anchor": "start""#, r#""PadOrTrim", "anchor": "center""#,
            r#""Vol", "gain": 1}, {"type": "PadOrTrim""#,
        ][first];
        let sample_rate = if resample { new_rate.to_string() } else { "null".into() };
        let start = start.min(len - 1);
        let chain = format!(
            r#"{{"audio": {{"sample_rate": {sample_rate}, "channels": 1, "start": {{"samples": {start}}}, "length": {{"samples": {limit}}}}},
                "transforms": [{{"type": {op}, "length": {{"samples": {length}}}, "pad_mode": "{pad_mode}"}}]}}"#
        );
        let transform = encoded(&chain);
        let sample = wav(rate, 2, &noise(2 * len, seed));
        let place = Place { seed, epoch: 0, position: 7 };
        let stages = transform.stages(&sample, place).expect("stages");
        prop_assert_eq!(numbers_of(&stages.last().expect("stages").value), floats(&made(&transform, &sample, place)));
    }

    #[test]
    fn lengths_are_known_before_the_first_sample(
        len in 1usize..4000, rate in 4000u32..48_000, n_fft in 2usize..300, hop in 1usize..300, center: bool, pad in 0usize..9,
    ) {
        let chain = format!(
            r#"{{"audio": {{"rate": {rate}, "sample_rate": 8000}}, "transforms": [
                {{"type": "Resample", "new_freq": 6000}},
                {{"type": "Spectrogram", "n_fft": {n_fft}, "hop_length": {hop}, "center": {center}, "pad": {pad}}}
            ]}}"#
        );
        let input = Input::of_shape(&[len], Number::Int16).expect("a sound");
        let Ok(transform) = Transform::new(chain.parse().expect("a chain"), input) else { return Ok(()) };
        let stages = transform.stages(&little_endian(&noise(len, 3)), PLACE).expect("no sample is refused");
        for (stage, kind) in stages.iter().zip(transform.kinds()) {
            prop_assert_eq!(Some(stage.value.shape()), kind.shape());
        }
        prop_assert_eq!(stages[2].value.shape(), transform.shape());
    }

    #[test]
    fn raw_samples_are_those_of_a_file(len in 1usize..500, channels in 1usize..4, mean: bool, seed: u64) {
        let planes: Vec<Vec<i16>> = (0..channels as u64).map(|channel| noise(len, seed ^ channel)).collect();
        let turns: Vec<i16> = (0..len).flat_map(|at| planes.iter().map(move |plane| plane[at])).collect();
        let wanted = if mean { 1 } else { channels };
        let ops = r#""transforms": [{"type": "PadOrTrim", "length": {"samples": 300}, "anchor": "center"}]"#;
        let of_file = encoded(&format!(r#"{{"audio": {{"channels": {wanted}, "sample_rate": 6000}}, {ops}}}"#));
        let input = Input::of_shape(&[channels, len], Number::Int16).expect("a sound");
        let of_raw = transform(
            &format!(r#"{{"audio": {{"channels": {wanted}, "sample_rate": 6000, "rate": 8000}}, {ops}}}"#), input,
        );
        prop_assert_eq!(
            made(&of_file, &wav(8000, channels as u16, &turns), PLACE), made(&of_raw, &little_endian(&planes.concat()), PLACE)
        );
    }

    #[test]
    fn no_bytes_make_a_chain_panic(bytes: Vec<u8>, at: usize, value: u8) {
        let transform = encoded(ALL);
        let mut out = vec![0; transform.bytes()];
        let _ = transform.apply(&bytes, PLACE, &mut out);
        for name in ["s16.flac", "mono.mp3", "stereo.ogg", "s24.wav"] {
            let mut broken = file(name).to_vec();
            let len = broken.len();
            broken[at % len] = value;
            let _ = transform.apply(&broken, PLACE, &mut out);
        }
    }
}

fn file(name: &str) -> &'static [u8] {
    FILES.iter().find(|(known, _)| *known == name).expect("a fixture").1
}

#[test]
fn the_last_stage_is_in_the_batch_for_every_format() {
    for sample_rate in ["null", "7919", "16000", "48000"] {
        for first in
            [r#""RandomTimeCrop", "pad": true"#, r#""PadOrTrim""#, r#""PadOrTrim", "anchor": "center""#]
        {
            let chain = format!(
                r#"{{"audio": {{"sample_rate": {sample_rate}, "channels": 2}},
                    "transforms": [{{"type": {first}, "length": {{"samples": 1500}}}}]}}"#
            );
            let transform = encoded(&chain);
            for (name, sample) in FILES {
                for position in 0..4 {
                    let place = Place { position, ..PLACE };
                    let stages = transform.stages(sample, place).expect(name);
                    assert_eq!(
                        numbers_of(&stages[1].value),
                        floats(&made(&transform, sample, place)),
                        "{name} {chain}"
                    );
                }
            }
        }
    }
}

#[test]
fn damage_outside_of_the_part_goes_unnoticed() {
    let wav = file("s16.wav");
    let start = encoded(
        r#"{"audio": {"channels": 1}, "transforms": [{"type": "PadOrTrim", "length": {"samples": 100}}]}"#,
    );
    let cut = &wav[..wav.len() - 20];
    assert_eq!(made(&start, cut, PLACE), made(&start, wav, PLACE));
    assert!(matches!(start.stages(cut, PLACE), Err(SampleError::Decode(DecodeError::Truncated { .. }))));
}

#[test]
fn files_over_the_limit_give_the_part_that_is_needed() {
    let of = |op: &str| {
        encoded(&format!(
            r#"{{"audio": {{"channels": 1, "sample_rate": 16000, "max_samples": 9000}},
                "transforms": [{{"type": "{op}", "length": {{"samples": 1000}}}}]}}"#
        ))
    };
    let long = wav(44_100, 1, &noise(500_000, 1));
    let crop = of("RandomTimeCrop");
    assert_ne!(made(&crop, &long, PLACE), made(&crop, &long, Place { position: 10, ..PLACE }));
    made(&of("PadOrTrim"), &long, PLACE);
    assert!(matches!(crop.stages(&long, PLACE), Err(SampleError::Decode(DecodeError::TooLong { .. }))));
}

#[test]
fn the_last_stage_of_a_damaged_file_is_in_the_batch() {
    for op in [r#""RandomTimeCrop", "pad": true"#, r#""PadOrTrim""#, r#""PadOrTrim", "anchor": "center""#] {
        let transform = encoded(&format!(
            r#"{{"audio": {{"channels": 1, "sample_rate": 7919, "truncated": "keep"}},
                "transforms": [{{"type": {op}, "length": {{"samples": 1500}}}}]}}"#
        ));
        for (name, sample) in FILES {
            for tenths in [6, 8, 9] {
                let sample = &sample[..sample.len() * tenths / 10];
                let Ok(stages) = transform.stages(sample, PLACE) else { continue };
                assert_eq!(
                    numbers_of(&stages[1].value),
                    floats(&made(&transform, sample, PLACE)),
                    "{name} {op} {tenths}"
                );
            }
        }
    }
}

#[test]
fn every_number_of_an_operation_follows_from_its_own_number() {
    let chain = r#"[
        {"type": "RandomTimeCrop", "length": {"samples": 1000}},
        {"type": "RandomApply", "p": 0.5, "transforms": [{"type": "Vol", "gain": 0.5}]},
        {"type": "Spectrogram", "n_fft": 16, "hop_length": 8, "pad_mode": "constant"},
        {"type": "RandomOrder", "transforms": [
            {"type": "TimeMasking", "time_mask_param": 40}, {"type": "FrequencyMasking", "freq_mask_param": 5}
        ]}
    ]"#;
    let transform = raw(chain, 4000);
    assert_eq!((transform.chain().count(), transform.shape()), (7, vec![1, 9, 126]));
    let ramp: Vec<f32> = (0..4000u16).map(|at| 0.5 + f32::from(at) / 8192.0).collect();
    for first in [0, 11] {
        let transform = transform.clone().numbered_from(first);
        for position in 0..32 {
            let place = Place { position, ..PLACE };
            let stages = transform.stages(&bytes_of(ramp.clone()), place).expect("stages");
            // np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, op, position, epoch])).random()
            let draws = |op: u64| Draws::new(place, first + op);

            let start = (draws(0).uniform() * 3001.0) as usize;
            assert_eq!(numbers_of(&stages[1].value), ramp[start..start + 1000]);

            let gain = if draws(1).uniform() < 0.5 { 0.5 } else { 1.0 };
            let louder: Vec<f32> =
                ramp[start..start + 1000].iter().map(|x| (x * gain).clamp(-1.0, 1.0)).collect();
            if gain < 1.0 {
                assert_eq!(numbers_of(&stages[2].value), louder);
            } else {
                assert_eq!(stages[2].value, stages[1].value);
            }

            // Its two operations have the numbers behind it, in whichever order they are applied.
            let masked = |op: u64, most: f64, size: f64| {
                let mut draws = draws(op);
                let width = draws.uniform() * most;
                let start = draws.uniform() * (size - width);
                start as usize..start as usize + width as usize
            };
            let (frames, bins) = (masked(5, 40.0, 126.0), masked(6, 5.0, 9.0));
            let [before, after] = [&stages[3], &stages[4]].map(|stage| numbers_of(&stage.value));
            for (at, (before, after)) in before.iter().zip(after).enumerate() {
                let is_masked = frames.contains(&(at % 126)) || bins.contains(&(at / 126));
                assert_eq!(after, if is_masked { 0.0 } else { *before });
            }
        }
    }
}

#[test]
fn a_number_of_an_operation_does_not_depend_on_the_random_choices_before_it() {
    let chain = |inner: &str| {
        format!(
            r#"[{{"type": "RandomApply", "p": 1, "transforms": [{inner}]}}, {{"type": "RandomTimeCrop", "length": {{"samples": 9}}}}]"#
        )
    };
    let [one, two] = [r#"{"type": "Identity"}"#, r#"{"type": "RandomTimeCrop", "length": {"samples": 500}}"#]
        .map(|inner| raw(&chain(inner), 500));
    let sample = bytes_of((0..500u16).map(f32::from));
    for position in 0..64 {
        let place = Place { position, ..PLACE };
        assert_eq!(made(&one, &sample, place), made(&two, &sample, place));
    }
}

#[test]
fn the_seed_of_a_chain_comes_before_that_of_its_place() {
    let chain = |seed: &str| {
        let ops = r#"[{"type": "RandomTimeCrop", "length": {"samples": 9}}]"#;
        let chain = format!(r#"{{"audio": {{"rate": 8000}}, "seed": {seed}, "transforms": {ops}}}"#);
        transform(&chain, Input::of_shape(&[5000], Number::Float32).expect("a sound"))
    };
    let sample = bytes_of((0..5000u16).map(f32::from));
    assert_eq!(made(&chain("5"), &sample, Place { seed: 1, ..PLACE }), made(&chain("null"), &sample, PLACE));
}

#[test]
fn an_impossible_chain_is_refused_with_the_operation_its_input_and_the_way_out() {
    let raw = Input::of_shape(&[2, 4000], Number::Int16).expect("a sound");
    let of_files = [
        (
            r#"{"audio": {}, "transforms": []}"#,
            "sounds of any number of channels, and a batch has one number: set \"channels\"",
        ),
        (
            r#"{"audio": {"channels": 1}, "transforms": []}"#,
            "sounds of various lengths, and a batch has one length: put RandomTimeCrop",
        ),
        (
            r#"{"audio": {"channels": 1}, "transforms": [{"type": "Spectrogram"}]}"#,
            "sounds of various lengths",
        ),
        (
            r#"{"audio": {"channels": 1}, "transforms": [{"type": "PadOrTrim", "length": {"samples": 4000}}, {"type": "MFCC"}]}"#,
            "operation 1 of the transforms, MFCC, is set to 16000 Hz and gets sounds of any rate: set \"sample_rate\" of \"audio\" to 16000",
        ),
        (
            r#"{"audio": {"channels": 1}, "transforms": [{"type": "PadOrTrim", "length": {"seconds": 1}}]}"#,
            "operation 0 of the transforms, PadOrTrim, has a length of 1 seconds and gets sounds of any rate",
        ),
        (
            r#"{"audio": {"channels": 1, "sample_rate": 8000}, "transforms": [{"type": "MelSpectrogram"}]}"#,
            "MelSpectrogram, is set to 16000 Hz and gets 8000 Hz: put Resample before it, or set `sample_rate` to 8000",
        ),
        (
            r#"{"audio": {"channels": 1, "sample_rate": 8000}, "transforms": [{"type": "Resample", "orig_freq": 44100}]}"#,
            "Resample, is set to sounds of 44100 Hz and gets 8000 Hz: leave `orig_freq` out",
        ),
        (
            r#"{"audio": {"rate": 8000, "channels": 1}, "transforms": []}"#,
            "has rate, and encoded sounds name their own",
        ),
        (r#"{"audio": {"channels": 0}, "transforms": []}"#, "has channels = 0: give 1 to 64"),
        (r#"{"audio": {"sample_rate": 0}, "transforms": []}"#, "has sample_rate = 0"),
        (r#"{"audio": {"start": {"seconds": -1}}, "transforms": []}"#, "`start` is -1 seconds"),
        (r#"{"audio": {"mono": true}, "transforms": []}"#, "unknown field `mono`"),
        (r#"{"audio": {}, "layout": "HWC", "transforms": []}"#, "unknown field `layout`"),
        (
            r#"{"audio": {}, "version": 2, "transforms": [{"type": "OfVersion2"}]}"#,
            "have version 2, and this program reads version 1",
        ),
        (
            r#"{"transforms": []}"#,
            "have no \"audio\", so they are of pictures: for sounds, give its options, at least {}",
        ),
        (
            r#"{"audio": {}, "transforms": [{"type": "RandomCrop", "size": 3}]}"#,
            "RandomCrop is an operation on pictures",
        ),
        (
            r#"{"audio": {}, "transforms": [{"type": "TimeMask"}]}"#,
            "there is no operation TimeMask on sounds; the nearest is TimeMasking",
        ),
        (r#"{"audio": {}, "transforms": [{"p": 1}]}"#, "an operation has no \"type\""),
        (r#"{"audio": {}, "transforms": [{"type": 3}]}"#, "\"type\" is 3"),
        (r#"{"audio": {}, "transforms": [{"type": "Vol"}]}"#, "Vol: missing field `gain`"),
        (r#"{"audio": {}, "transforms": [{"type": "Vol", "gains": 1}]}"#, "unknown field `gains`"),
    ];
    for (chain, reason) in of_files {
        let refused = refused(chain, Input::Encoded);
        assert!(refused.contains(reason), "{chain}: {refused}");
    }
    let of_raw = [
        (r#"{"type": "Vol", "gain": -1}"#, "Vol, has an argument out of range: `gain` is -1"),
        (
            r#"{"type": "RandomTimeCrop", "length": {"samples": 4001}}"#,
            "RandomTimeCrop, gets 4000 samples and needs at least 4001: set `pad`",
        ),
        (
            r#"{"type": "RandomTimeCrop", "length": {"seconds": 0.00001}}"#,
            "has a length of 0.00001 seconds, which is no sample",
        ),
        (
            r#"{"type": "PadOrTrim", "length": {"samples": 999999999}}"#,
            "has a length of 999999999 samples: give",
        ),
        (r#"{"type": "Fade", "fade_in_len": 4001}"#, "Fade, gets 4000 samples and needs at least 4001"),
        (
            r#"{"type": "Spectrogram", "n_fft": 8002}"#,
            "Spectrogram, gets 4000 samples and needs at least 4002: pad the waveform",
        ),
        (
            r#"{"type": "Spectrogram", "n_fft": 65536, "hop_length": 1, "pad": 99999}"#,
            "Spectrogram, would make",
        ),
        (
            r#"{"type": "AmplitudeToDB"}"#,
            "AmplitudeToDB, takes spectrograms, and gets float32 waveforms [2, 4000] of 8000 Hz",
        ),
        (r#"{"type": "MelScale"}"#, "MelScale, takes spectrograms"),
        (r#"{"type": "TimeMasking", "time_mask_param": 3}"#, "TimeMasking, takes spectrograms"),
        (
            r#"{"type": "Spectrogram"}, {"type": "Vol", "gain": 1}"#,
            "takes waveforms, and gets float32 spectrograms [2, 201, 21]: move it before",
        ),
        (
            r#"{"type": "Spectrogram", "n_fft": 512}, {"type": "MelScale"}"#,
            "MelScale, is set to 201 bins and gets 257: set `n_stft`",
        ),
        (
            r#"{"type": "MuLawEncoding"}, {"type": "Vol", "gain": 1}"#,
            "takes waveforms, and gets uint8 levels [2, 4000]: move it before MuLawEncoding",
        ),
        (
            r#"{"type": "MuLawEncoding"}, {"type": "Normalize", "mean": 0, "std": 1}"#,
            "takes floats, and gets uint8 levels",
        ),
        (r#"{"type": "Normalize", "mean": 0, "std": 0}"#, "`std` is 0"),
        (r#"{"type": "ToDtype", "dtype": "uint8"}"#, "makes uint8 of float32 waveforms"),
        (r#"{"type": "ToDtype", "dtype": "int8"}"#, "unknown variant `int8`"),
        (
            r#"{"type": "RandomApply", "transforms": [{"type": "Spectrogram"}]}"#,
            "makes either float32 waveforms [2, 4000] of 8000 Hz or float32 spectrograms",
        ),
        (
            r#"{"type": "RandomApply", "transforms": [{"type": "Resample"}]}"#,
            "all its sounds need one form, rate",
        ),
        (r#"{"type": "RandomApply", "p": 1.5, "transforms": []}"#, "`p` is 1.5: give 0 to 1"),
        (
            r#"{"type": "RandomApply", "transforms": [{"type": "PadOrTrim", "length": {"samples": 9}}]}"#,
            "sounds of various lengths",
        ),
        (r#"{"type": "RandomChoice", "transforms": []}"#, "has 0 operations"),
        (
            r#"{"type": "RandomOrder", "transforms": [{"type": "Resample"}]}"#,
            "has Resample, which makes float32 waveforms [2, 8000] of 16000 Hz of",
        ),
        (
            r#"{"type": "Compose", "transforms": [{"type": "Vol", "gain": -1}]}"#,
            "Compose, has Vol, which has an argument out of range",
        ),
    ];
    for (ops, reason) in of_raw {
        let refused = refused(&format!(r#"{{"audio": {{"rate": 8000}}, "transforms": [{ops}]}}"#), raw);
        assert!(refused.contains(reason), "{ops}: {refused}");
    }
    for (audio, reason) in [
        ("{}", "needs rate for raw samples"),
        (r#"{"rate": 8000, "channels": 3}"#, "has channels = 3, and raw samples have 2"),
        (r#"{"rate": 8000, "start": {"samples": 3}}"#, "which are for encoded sounds"),
        (r#"{"rate": 8000, "max_samples": 7999}"#, "has max_samples = 7999"),
        (r#"{"rate": 4294967291, "sample_rate": 4294967279}"#, "resamples: has an argument out of range"),
    ] {
        let refused = refused(&format!(r#"{{"audio": {audio}, "transforms": []}}"#), raw);
        assert!(refused.contains(reason), "{audio}: {refused}");
    }
    for shape in [&[][..], &[0], &[65, 9], &[0, 9], &[1, 2, 3]] {
        assert!(matches!(Input::of_shape(shape, Number::Int16), Err(ChainError::Input(_))), "{shape:?}");
    }
}

#[test]
fn a_sound_that_cannot_be_changed_is_an_error_that_names_the_way_out() {
    let fixed = encoded(
        r#"{"audio": {"channels": 2, "sample_rate": 8000, "max_samples": 9000}, "transforms": [
            {"type": "Vol", "gain": 1}, {"type": "RandomTimeCrop", "length": {"samples": 1000}}
        ]}"#,
    );
    let of = |rate, channels, len| failed(&fixed, &wav(rate, channels, &vec![1; len])).to_string();
    assert!(failed(&fixed, b"no sound").to_string().contains("unknown audio format"));
    assert!(failed(&fixed, &[]).to_string().contains("nothing (0 bytes)"));
    let half = &file("s16.wav")[..500];
    assert!(matches!(failed(&fixed, half), SampleError::Decode(DecodeError::Truncated { .. })));
    assert!(of(8000, 3, 3000).contains("has 3 channels, and a batch has 2: set \"channels\""));
    assert!(of(8000, 2, 20_000).contains("over 9000 samples, the limit"));
    assert!(of(1000, 2, 4000).contains("takes 32000 numbers"), "{}", of(1000, 2, 4000));
    assert!(of(8000, 1, 6000).contains("takes 12000 numbers"));
    let short = of(8000, 2, 400);
    assert_eq!(
        short,
        "operation 1 of the transforms, RandomTimeCrop, gets 200 samples and needs at least 1000: set `pad` to true, or leave \
         shorter ones out"
    );
    let odd = encoded(
        r#"{"audio": {"channels": 1, "sample_rate": 4294967279}, "transforms": [{"type": "PadOrTrim", "length": {"samples": 9}}]}"#,
    );
    let error = failed(&odd, &wav(2_000_000_011, 1, &[1; 90])).to_string();
    assert!(
        error.starts_with("the sound of 2000000011 Hz cannot be resampled to 4294967279 Hz: Resample has"),
        "{error}"
    );
    let named = encoded(
        r#"{"audio": {"channels": 1}, "transforms": [
            {"type": "Resample", "orig_freq": 44100, "new_freq": 16000}, {"type": "PadOrTrim", "length": {"seconds": 1}}
        ]}"#,
    );
    made(&named, &wav(44_100, 1, &[1; 90]), PLACE);
    let error = failed(&named, &wav(48_000, 1, &[1; 90])).to_string();
    assert!(
        error.contains("Resample, is set to sounds of 44100 Hz and gets 48000 Hz: leave `orig_freq` out"),
        "{error}"
    );
    let raw = raw("[]", 9);
    assert!(matches!(failed(&raw, &[0; 35]), SampleError::Bytes(35, 36)));
    let silent = encoded(
        r#"{"audio": {"channels": 1}, "transforms": [{"type": "PadOrTrim", "length": {"samples": 9}, "pad_mode": "circular"}]}"#,
    );
    assert!(failed(&silent, &wav(8000, 1, &[])).to_string().contains("gets 0 samples and needs at least 1"));
}

#[test]
fn channels_are_those_of_the_batch() {
    let of = |channels: usize| {
        encoded(&format!(
            r#"{{"audio": {{"channels": {channels}}}, "transforms": [{{"type": "PadOrTrim", "length": {{"samples": 2}}}}]}}"#
        ))
    };
    let [stereo, mono] = [wav(8000, 2, &[16_384, 0, -8192, 8192]), wav(8000, 1, &[16_384, -8192])];
    assert_eq!(floats(&made(&of(1), &stereo, PLACE)), [0.25, 0.0]);
    assert_eq!(floats(&made(&of(2), &stereo, PLACE)), [0.5, -0.25, 0.0, 0.25]);
    assert_eq!(floats(&made(&of(2), &mono, PLACE)), [0.5, -0.25, 0.5, -0.25]);
}

#[test]
fn numbers_have_the_type_of_the_chain() {
    let sample = bytes_of([0.1, -0.7, 1.0, 0.0]);
    let of = |ops: &str| {
        let transform = raw(ops, 4);
        (transform.dtype(), made(&transform, &sample, PLACE))
    };
    let exact = floats(&sample);
    let (dtype, halves) = of(r#"[{"type": "ToDtype", "dtype": "float16"}]"#);
    assert_eq!(dtype, Dtype::Float16);
    assert_eq!(halves, exact.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect::<Vec<u8>>());
    let (dtype, brains) = of(r#"[{"type": "ToDtype", "dtype": "bfloat16"}, {"type": "Vol", "gain": 1}]"#);
    assert_eq!(dtype, Dtype::Bfloat16);
    assert_eq!(brains, exact.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect::<Vec<u8>>());
    // floor((1 + sign(x) * log1p(255 * |x|) / log1p(255)) / 2 * 255 + 0.5)
    let levels = of(r#"[{"type": "MuLawEncoding"}]"#);
    assert_eq!(levels, (Dtype::Uint8, vec![203, 8, 255, 128]));
    let (dtype, levels) = of(r#"[{"type": "MuLawEncoding"}, {"type": "ToDtype", "dtype": "float32"}]"#);
    assert_eq!((dtype, floats(&levels)), (Dtype::Float32, vec![203.0, 8.0, 255.0, 128.0]));
    let (dtype, levels) = of(r#"[{"type": "MuLawEncoding", "quantization_channels": 1024}]"#);
    assert_eq!((dtype, floats(&levels)[2]), (Dtype::Float32, 1023.0));
    let (_, normal) = of(r#"[{"type": "Normalize", "mean": 0.5, "std": 0.25}]"#);
    assert_eq!(floats(&normal), [0.1_f32, -0.7, 1.0, 0.0].map(|x| (x - 0.5) / 0.25));
}

#[test]
fn sounds_of_many_rates_share_a_bounded_number_of_kernels() {
    let resamplers = Resamplers::new(Resample { new_freq: 16_000, ..Resample::default() });
    for rate in (8000..8400).chain([44_100, 8000]) {
        let made = resamplers.of(rate).expect("kernels").apply(&Waveform::with(vec![vec![0.5; 9]], rate));
        assert_eq!(made.expect("a waveform"), Waveform::with(vec![vec![0.5; 9]], rate).resampled_alone());
    }
    assert!(resamplers.kept_numbers() <= 1 << 24);
    assert!(resamplers.kept_rates().len() <= 64);
    assert_eq!(resamplers.kept_rates().last(), Some(&8000));
}

impl Waveform {
    fn resampled_alone(&self) -> Self {
        Resample { new_freq: 16_000, ..Resample::default() }.apply(self).expect("a waveform")
    }
}

#[test]
fn the_largest_value_on_the_way_is_known() {
    let bounded = |max: u64, ops: &str| {
        encoded(&format!(r#"{{"audio": {{"channels": 1, "max_samples": {max}}}, "transforms": [{ops}]}}"#))
            .largest()
    };
    let crop = r#"{"type": "RandomTimeCrop", "length": {"samples": 1000}}"#;
    assert_eq!(bounded(1 << 20, crop), 3 * 4 * (1 << 20));
    assert_eq!(bounded(100, crop), 2 * 4 * 1000);
    let spectrum = format!(r#"{crop}, {{"type": "Spectrogram", "hop_length": 1}}"#);
    assert_eq!(bounded(100, &spectrum), 2 * 4 * 201 * 1001);
    let unknown = format!(r#"{{"type": "Resample"}}, {crop}"#);
    assert_eq!(bounded(100, &unknown), 2 * 4 * (1 << 30));
    assert_eq!(raw("[]", 50).largest(), 2 * 4 * 50);
}

#[test]
fn a_chain_survives_its_json_and_equal_chains_have_equal_digests() {
    let chain: Chain = ALL.parse().expect("a chain");
    let again: Chain = chain.to_json().parse().expect("the same chain");
    assert_eq!((&again, again.digest()), (&chain, chain.digest()));
    let spelled: Chain =
        r#"{"audio": {"max_samples": 33554432}, "on_error": "raise", "transforms": [{"type": "Vol", "gain": 1, "gain_type": "amplitude"}]}"#
            .parse()
            .expect("a chain");
    let short: Chain = r#"[{"type":"Vol","gain":1.0}]"#.parse().expect("a chain");
    assert_eq!(spelled.digest(), short.digest());
    assert_ne!(short.digest(), chain.digest());
    let skip: Chain = r#"{"on_error": "skip", "audio": {}, "transforms": []}"#.parse().expect("a chain");
    assert_eq!(skip.on_error, OnError::Skip);
}

#[test]
fn the_digest_of_a_chain_never_changes() {
    let chain: Chain = ALL.parse().expect("a chain");
    assert_eq!(
        chain.digest().to_hex().as_str(),
        "6a8c568b61dd3f16266cb2a99f465d774a1fe9ee2036146090b175fe32dba09d"
    );
    let empty = Chain::new(vec![]);
    assert_eq!(
        empty.to_json(),
        r#"{"version":1,"audio":{"sample_rate":null,"channels":null,"rate":null,"start":{"samples":0},"length":null,"truncated":"raise","max_samples":33554432},"column":null,"transforms":[],"seed":null,"on_error":"raise"}"#
    );
}

#[test]
fn the_json_of_a_chain_is_of_sounds_or_of_pictures() {
    let sounds = Chain::new(vec![]).to_json();
    let pictures = shardd_transforms::Chain::new(vec![]).to_json();
    assert!(Chain::is_audio(&sounds) && !Chain::is_audio(&pictures));
    assert!(sounds.parse::<shardd_transforms::Chain>().is_err() && pictures.parse::<Chain>().is_err());
    assert!(Chain::is_audio(r#" {"transforms": 3, "unknown": [], "audio": {}}"#));
    for other in ["", "[]", r#"[{"audio": {}}]"#, r#"{"audio": null}"#, "3", r#"{"audio": "#] {
        assert!(!Chain::is_audio(other), "{other}");
    }
}

#[test]
fn every_operation_survives_its_json() {
    let ops = r#"[
        {"type": "AmplitudeToDB", "stype": "magnitude", "top_db": 60.0},
        {"type": "Compose", "transforms": [{"type": "Identity"}]},
        {"type": "Fade", "fade_in_len": 3, "fade_out_len": 4, "fade_shape": "half_sine"},
        {"type": "FrequencyMasking", "freq_mask_param": 5, "iid_masks": true},
        {"type": "Identity"},
        {"type": "LogMel", "sample_rate": 8000, "n_fft": 200, "hop_length": 80, "n_mels": 128},
        {"type": "MFCC", "sample_rate": 8000, "n_mfcc": 13, "norm": null, "log_mels": true, "melkwargs": {"n_mels": 23}},
        {"type": "MelScale", "n_mels": 12, "norm": "slaney", "mel_scale": "slaney"},
        {"type": "MelSpectrogram", "normalized": "frame_length", "power": 1.0, "pad_mode": "circular", "f_max": 4000.0},
        {"type": "MuLawEncoding", "quantization_channels": 32},
        {"type": "Normalize", "mean": -4.27, "std": 4.57},
        {"type": "PadOrTrim", "length": {"seconds": 1.5}, "anchor": "center", "pad_mode": "circular"},
        {"type": "RandomApply", "transforms": [{"type": "Vol", "gain": 2.0}], "p": 0.25},
        {"type": "RandomChoice", "transforms": [{"type": "Identity"}, {"type": "Vol", "gain": 2.0}], "p": [1.0, 2.0]},
        {"type": "RandomOrder", "transforms": [{"type": "Identity"}]},
        {"type": "RandomTimeCrop", "length": {"samples": 77}, "pad": true, "pad_mode": "circular"},
        {"type": "Resample", "orig_freq": 8000, "new_freq": 7000, "resampling_method": "sinc_interp_kaiser", "beta": 9.5},
        {"type": "SpecAugment", "n_time_masks": 1, "time_mask_param": 2, "n_freq_masks": 3, "freq_mask_param": 4, "iid_masks": false, "p": 0.5, "zero_masking": true},
        {"type": "Spectrogram", "n_fft": 64, "window_fn": "hamming_window", "normalized": true},
        {"type": "TimeMasking", "time_mask_param": 5, "iid_masks": true, "p": 0.5},
        {"type": "ToDtype", "dtype": "bfloat16"},
        {"type": "Vol", "gain": -3.0, "gain_type": "db"}
    ]"#;
    let read: Vec<Op> = serde_json::from_str(ops).expect("operations");
    let given: Vec<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(ops).expect("objects");
    for (op, given) in read.iter().zip(given) {
        let json = serde_json::to_value(op).expect("JSON");
        assert_eq!(&serde_json::from_value::<Op>(json.clone()).expect("the same"), op);
        for (name, value) in
            given.into_iter().filter(|(name, _)| !["melkwargs", "transforms"].contains(&name.as_str()))
        {
            assert_eq!(json[&name], value, "{op}");
        }
        assert!(op.to_string().starts_with(&format!("{}(", op.name())));
    }
    let names: Vec<&str> = read.iter().map(Op::name).collect();
    assert_eq!(names, Op::NAMES);
    assert_eq!(Op::nearest("melspec"), "MelSpectrogram");
}
