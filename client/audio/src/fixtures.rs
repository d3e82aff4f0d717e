//! Files of one sound, for tests.

pub(crate) const FILES: [(&str, &[u8]); 12] = [
    ("u8.wav", include_bytes!("../tests/fixtures/u8.wav")),
    ("s16.wav", include_bytes!("../tests/fixtures/s16.wav")),
    ("s24.wav", include_bytes!("../tests/fixtures/s24.wav")),
    ("s32.wav", include_bytes!("../tests/fixtures/s32.wav")),
    ("f32.wav", include_bytes!("../tests/fixtures/f32.wav")),
    ("f64.wav", include_bytes!("../tests/fixtures/f64.wav")),
    ("rf64.wav", include_bytes!("../tests/fixtures/rf64.wav")),
    ("s16.flac", include_bytes!("../tests/fixtures/s16.flac")),
    ("s24.flac", include_bytes!("../tests/fixtures/s24.flac")),
    ("stereo.mp3", include_bytes!("../tests/fixtures/stereo.mp3")),
    ("mono.mp3", include_bytes!("../tests/fixtures/mono.mp3")),
    ("stereo.ogg", include_bytes!("../tests/fixtures/stereo.ogg")),
];
