//! The rules of sounds and spectra.

use super::*;

#[test]
fn channels_of_one_sound_are_of_one_length() {
    assert!(Waveform::new(vec![vec![0.0; 3], vec![0.0; 2]], 8000).is_err());
    assert!(Waveform::new(vec![], 8000).is_err());
    assert!(Waveform::new(vec![vec![]], 0).is_err());
    assert_eq!(Waveform::new(vec![vec![]], 8000).unwrap().samples(), 0);
}

#[test]
fn a_spectrum_has_as_many_numbers_as_its_shape() {
    assert!(Specgram::new([1, 2, 3], vec![0.0; 5]).is_err());
    assert!(Specgram::new([usize::MAX, 2, 3], vec![0.0; 5]).is_err());
    let made = Specgram::new([1, 2, 3], (0..6u8).map(f32::from).collect()).unwrap();
    assert_eq!(made.row(0, 1), [3.0, 4.0, 5.0]);
}

#[test]
fn seconds_are_rounded_to_samples() {
    assert_eq!(Span::Seconds(0.5).samples(44_101), 22_051);
    assert_eq!(Span::Samples(7).samples(8000), 7);
    assert!(Span::Seconds(-1.0).check("start").is_err());
    assert!(Span::Seconds(f64::NAN).check("start").is_err());
}
