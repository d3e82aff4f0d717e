//! Laws and stories of the operations. Their numbers beside torchaudio's: `tests/fixtures.rs` and `tests/reference/audio.py`.

use proptest::prelude::*;
use serde::de::DeserializeOwned;

use super::crop::{Anchor, Padding};
use super::spectrogram::{Normalized, PadMode};
use super::*;
use crate::draw::Draw;
use crate::error::OpError;
use crate::waveform::{Span, Specgram, Waveform};

/// The numbers of a list, again and again.
struct Fixed(Vec<f64>, usize);

impl Draw for Fixed {
    fn uniform(&mut self) -> f64 {
        self.1 += 1;
        self.0[(self.1 - 1) % self.0.len()]
    }
}

fn of<T: DeserializeOwned>(json: &str) -> T {
    serde_json::from_str(json).unwrap()
}

fn noise(samples: usize, rate: u32) -> Waveform {
    let at = |i: usize| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0;
    Waveform::new(vec![(0..samples).map(at).collect()], rate).unwrap()
}

fn ones(shape: [usize; 3]) -> Specgram {
    Specgram::new(shape, vec![1.0; shape.iter().product()]).unwrap()
}

#[test]
fn arguments_have_the_names_and_defaults_of_torchaudio() {
    let mel: MelSpectrogram = of(
        r#"{"n_fft": 512, "window_fn": "hamming_window", "norm": "slaney", "normalized": "frame_length"}"#,
    );
    assert_eq!((mel.n_fft, mel.n_mels, mel.normalized), (512, 128, Normalized::FrameLength));
    assert_eq!(of::<Spectrogram>(&serde_json::to_string(&mel.spectrogram()).unwrap()), mel.spectrogram());
    assert_eq!(of::<Spectrogram>(r#"{"normalized": true}"#).normalized, Normalized::Flag(true));
    assert_eq!(of::<MFCC>(r#"{"melkwargs": {"n_mels": 64}}"#).melkwargs.n_mels, 64);
    let augment: SpecAugment =
        of(r#"{"n_time_masks": 1, "time_mask_param": 9, "n_freq_masks": 1, "freq_mask_param": 9}"#);
    assert!(augment.iid_masks && augment.p == 1.0 && !augment.zero_masking);
    assert!(serde_json::from_str::<Resample>(r#"{"new_rate": 8000}"#).is_err());
    assert!(serde_json::from_str::<Vol>("{}").is_err());
}

#[test]
fn wrong_arguments_are_named_before_the_first_sample() {
    let error = |check: Result<(), String>| check.unwrap_err();
    assert!(error(of::<Spectrogram>(r#"{"n_fft": 0}"#).check()).contains("`n_fft` is 0"));
    assert!(error(of::<Spectrogram>(r#"{"win_length": 401}"#).check()).contains("`win_length` is 401"));
    assert!(error(of::<Spectrogram>(r#"{"hop_length": 0}"#).check()).contains("`hop_length` is 0"));
    assert!(error(of::<Spectrogram>(r#"{"power": 0}"#).check()).contains("`power` is 0"));
    assert!(error(of::<MelScale>(r#"{"f_min": 9000.0}"#).check()).contains("f_min"));
    assert!(error(of::<MelScale>(r#"{"f_max": 99999.0}"#).check()).contains("f_max"));
    assert!(error(of::<MFCC>(r#"{"n_mfcc": 129}"#).check()).contains("`n_mfcc` is 129"));
    assert!(error(of::<MFCC>(r#"{"dct_type": 3}"#).check()).contains("dct_type"));
    assert!(error(of::<Vol>(r#"{"gain": -1}"#).check()).contains("gain"));
    assert!(error(of::<TimeMasking>(r#"{"time_mask_param": 3, "p": 1.5}"#).check()).contains("`p` is 1.5"));
    assert!(error(of::<Resample>(r#"{"lowpass_filter_width": 0}"#).check()).contains("lowpass"));
    assert!(
        error(of::<Resample>(r#"{"orig_freq": 4294967291, "new_freq": 4294967279}"#).check())
            .contains("kernels")
    );
    assert!(error(of::<RandomTimeCrop>(r#"{"length": {"seconds": -1}}"#).check()).contains("length"));
}

#[test]
fn waveforms_that_torch_refuses_are_refused_with_a_way_out() {
    let short = Spectrogram::default().apply(&noise(200, 16_000)).unwrap_err();
    assert!(matches!(short, OpError::TooShort { needed: 201, .. }), "{short}");
    assert_eq!(Spectrogram::default().apply(&noise(201, 16_000)).unwrap().frames(), 2);
    let bare = Spectrogram { center: false, ..Spectrogram::default() };
    assert!(matches!(bare.apply(&noise(399, 1)).unwrap_err(), OpError::TooShort { needed: 400, .. }));
    let padded = Spectrogram { pad_mode: PadMode::Constant, ..Spectrogram::default() };
    assert_eq!(padded.apply(&noise(1, 1)).unwrap().frames(), 1);
    assert!(padded.apply(&noise(0, 1)).is_err());
    let rate = MelSpectrogram::default().apply(&noise(1000, 8000)).unwrap_err();
    assert!(rate.to_string().contains("put a Resample before it"), "{rate}");
    assert!(Fade { fade_in_len: 9, ..Fade::default() }.apply(noise(8, 1)).is_err());
    assert!(MelScale::default().apply(&ones([1, 200, 3])).is_err());
}

#[test]
fn results_over_the_limit_are_refused_before_they_take_memory() {
    let wide = Spectrogram { n_fft: 1 << 16, hop_length: Some(1), ..Spectrogram::default() };
    assert!(matches!(wide.apply(&noise(100_000, 1)), Err(OpError::TooLarge { .. })));
    let crop = RandomTimeCrop { length: Span::Samples(1 << 40), pad: true, pad_mode: Padding::Constant };
    assert!(matches!(crop.apply(noise(9, 1), &mut Fixed(vec![0.0], 0)), Err(OpError::TooLarge { .. })));
    let up = Resample { new_freq: 4_000_000_000, ..Resample::default() };
    assert!(matches!(up.apply(&noise(100, 1)), Err(OpError::TooLarge { .. } | OpError::Argument { .. })));
}

#[test]
fn masks_follow_from_the_numbers_drawn() {
    let time: TimeMasking = of(r#"{"time_mask_param": 8}"#);
    // 0.5 * 8 = 4 frames, from 0.25 * (20 - 4) = 4.
    let masked = time.apply(ones([2, 3, 20]), &mut Fixed(vec![0.5, 0.25], 0)).unwrap();
    for channel in 0..2 {
        let zeros: Vec<usize> = (0..20).filter(|&t| masked.row(channel, 2)[t] == 0.0).collect();
        assert_eq!(zeros, [4, 5, 6, 7]);
    }
    let iid: FrequencyMasking = of(r#"{"freq_mask_param": 4, "iid_masks": true}"#);
    // Widths 0 and 3, first bins 0.5 * (10 - 0.4) = 4 and 0.9 * (10 - 3.6) = 5.
    let masked = iid.apply(ones([2, 10, 1]), &mut Fixed(vec![0.1, 0.9, 0.5, 0.9], 0)).unwrap();
    assert!(masked.data()[..10].iter().all(|&x| x == 1.0));
    let zeros: Vec<usize> = (0..10).filter(|&bin| masked.row(1, bin)[0] == 0.0).collect();
    assert_eq!(zeros, [5, 6, 7]);
}

#[test]
fn masks_that_are_wider_than_the_axis_take_all_of_it() {
    let time: TimeMasking = of(r#"{"time_mask_param": 1000}"#);
    let masked = time.apply(ones([1, 1, 10]), &mut Fixed(vec![0.9, 0.5], 0)).unwrap();
    assert!(masked.data()[..9].iter().all(|&x| x == 0.0));
    let huge = TimeMasking { time_mask_param: usize::MAX, iid_masks: false, p: 1.0 };
    huge.apply(ones([1, 1, 10]), &mut Fixed(vec![0.999], 0)).unwrap();
    huge.apply(ones([1, 0, 0]), &mut Fixed(vec![0.999], 0)).unwrap();
}

#[test]
fn spec_augment_masks_with_the_mean_or_zero() {
    let mut augment: SpecAugment =
        of(r#"{"n_time_masks": 1, "time_mask_param": 4, "n_freq_masks": 0, "freq_mask_param": 9}"#);
    let ramp = Specgram::new([1, 1, 9], (0..9u8).map(f32::from).collect()).unwrap();
    let masked = augment.apply(ramp.clone(), &mut Fixed(vec![0.5, 0.0], 0)).unwrap();
    assert_eq!(masked.data(), [4.0, 4.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    augment.zero_masking = true;
    let masked = augment.apply(ramp, &mut Fixed(vec![0.5, 0.0], 0)).unwrap();
    assert_eq!(masked.data()[..3], [0.0, 0.0, 2.0]);
}

#[test]
fn a_crop_is_where_its_number_says() {
    let crop: RandomTimeCrop = of(r#"{"length": {"seconds": 0.5}}"#);
    let ramp = Waveform::new(vec![(0..9u8).map(f32::from).collect()], 8).unwrap();
    // floor(0.99 * (9 - 4 + 1)) = 5.
    let cut = crop.apply(ramp.clone(), &mut Fixed(vec![0.99], 0)).unwrap();
    assert_eq!(cut.channels()[0], [5.0, 6.0, 7.0, 8.0]);
    let mut long = RandomTimeCrop { length: Span::Samples(11), pad: false, pad_mode: Padding::Constant };
    assert!(long.apply(ramp.clone(), &mut Fixed(vec![0.99], 0)).is_err());
    long.pad = true;
    let padded = long.apply(ramp, &mut Fixed(vec![0.99], 0)).unwrap();
    assert_eq!(padded.channels()[0][8..], [8.0, 0.0, 0.0]);
}

#[test]
fn a_waveform_is_padded_or_trimmed_at_its_end_or_around_its_middle() {
    let made = |samples: u8, arguments: &str| {
        let op: PadOrTrim = of(&format!(r#"{{"length": {{"samples": 6}}, {arguments}}}"#));
        let ramp = Waveform::new(vec![(1..=samples).map(f32::from).collect()], 8).unwrap();
        op.apply(ramp).map(|made| made.channels()[0].clone())
    };
    let (start, center) = (r#""anchor": "start""#, r#""anchor": "center""#);
    let repeated = |anchor: &str| format!(r#"{anchor}, "pad_mode": "circular""#);
    for cut in [made(9, start), made(9, &repeated(start))] {
        assert_eq!(cut.unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }
    assert_eq!(made(9, center).unwrap(), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    assert_eq!(made(3, start).unwrap(), [1.0, 2.0, 3.0, 0.0, 0.0, 0.0]);
    assert_eq!(made(3, center).unwrap(), [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
    assert_eq!(made(4, &repeated(start)).unwrap(), [1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
    assert_eq!(made(3, &repeated(center)).unwrap(), [3.0, 1.0, 2.0, 3.0, 1.0, 2.0]);
    assert_eq!(made(6, &repeated(center)).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(made(0, start).unwrap(), [0.0; 6]);
    assert!(matches!(made(0, &repeated(start)), Err(OpError::TooShort { .. })));
    let huge =
        PadOrTrim { length: Span::Samples(1 << 40), anchor: Anchor::Start, pad_mode: Padding::Constant };
    assert!(matches!(huge.apply(noise(9, 1)), Err(OpError::TooLarge { .. })));
}

#[test]
fn silence_stays_silence() {
    let silence = Waveform::new(vec![vec![0.0; 1600]; 2], 16_000).unwrap();
    let mel = MelSpectrogram::default().apply(&silence).unwrap();
    assert!(mel.data().iter().all(|&x| x == 0.0));
    let decibels = AmplitudeToDB { top_db: Some(80.0), ..AmplitudeToDB::default() }.apply(mel).unwrap();
    assert!(decibels.data().iter().all(|&x| (x + 100.0).abs() < 1e-5));
    assert!(
        Resample { new_freq: 8000, ..Resample::default() }.apply(&silence).unwrap().channels()[1]
            .iter()
            .all(|&x| x == 0.0)
    );
    let levels = MuLawEncoding::default().apply(&silence).unwrap();
    assert!(levels.iter().flatten().all(|&level| level == 128));
}

#[test]
fn one_channel_does_not_change_another() {
    let one = noise(3000, 16_000);
    let both = Waveform::new(vec![vec![0.7; 3000], one.channels()[0].clone()], 16_000).unwrap();
    let mel = MelSpectrogram::default().plan().unwrap();
    let [alone, beside] = [mel.apply(&one).unwrap(), mel.apply(&both).unwrap()];
    assert_eq!(alone.data(), &beside.data()[alone.data().len()..]);
}

proptest! {
    #[test]
    fn a_mel_spectrogram_is_the_mel_scale_of_a_spectrogram(
        samples in 300usize..3000, n_fft in 2usize..300, hop in 1usize..300, n_mels in 1usize..50,
    ) {
        let mel = MelSpectrogram { n_fft, hop_length: Some(hop), n_mels, ..MelSpectrogram::default() };
        let waveform = noise(samples, 16_000);
        let fused = mel.apply(&waveform).unwrap();
        let steps = mel.mel_scale().apply(&mel.spectrogram().apply(&waveform).unwrap()).unwrap();
        prop_assert_eq!(fused.shape(), steps.shape());
        for (a, b) in fused.data().iter().zip(steps.data()) {
            prop_assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0));
        }
    }

    #[test]
    fn a_resampled_waveform_has_the_length_of_its_time(samples in 0usize..5000, from in 1u32..500, to in 1u32..500) {
        let made = Resample { new_freq: to, ..Resample::default() }.apply(&noise(samples, from)).unwrap();
        prop_assert_eq!(made.samples(), (samples * to as usize).div_ceil(from as usize));
        prop_assert_eq!(made.rate(), to);
    }

    #[test]
    fn a_crop_is_a_part_of_its_waveform(samples in 0usize..100, length in 1u64..120, u in 0.0f64..1.0) {
        let crop = RandomTimeCrop { length: Span::Samples(length), pad: true, pad_mode: Padding::Constant };
        let waveform = noise(samples, 8000);
        let [first, kept] = crop.place(samples, 8000, &mut Fixed(vec![u], 0));
        let cut = crop.apply(waveform.clone(), &mut Fixed(vec![u], 0)).unwrap();
        prop_assert_eq!(cut.samples() as u64, length);
        prop_assert_eq!(&cut.channels()[0][..kept], &waveform.channels()[0][first..first + kept]);
    }

    #[test]
    fn no_argument_makes_an_operation_panic(
        samples in 0usize..600, n_fft in 0usize..700, win in 0usize..700, hop in 0usize..700, n_mels in 0usize..200,
        pad in 0usize..9, center: bool, mode in 0usize..4, f_min in -10.0f64..9000.0, f_max in -10.0f64..9000.0,
    ) {
        let pad_mode = [PadMode::Reflect, PadMode::Constant, PadMode::Replicate, PadMode::Circular][mode];
        let mel = MelSpectrogram {
            n_fft, win_length: Some(win), hop_length: Some(hop), n_mels, pad, center, pad_mode, f_min, f_max: Some(f_max),
            ..MelSpectrogram::default()
        };
        let _ = mel.apply(&noise(samples, 16_000));
        let _ = mel.spectrogram().apply(&noise(samples, 16_000));
    }
}
