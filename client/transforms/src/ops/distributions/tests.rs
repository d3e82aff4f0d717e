use super::*;
use crate::draws::Place;

const SAMPLES: usize = 100_000;

/// The bound of Kolmogorov and Smirnov for `SAMPLES` samples that fails for one seed in a thousand.
const BOUND: f64 = 1.95 / 316.227766;

fn samples(seed: u64, mut sample: impl FnMut(&mut Draws) -> f64) -> Vec<f64> {
    let mut draws = Draws::new(Place { seed, epoch: 1, position: 2 }, 3);
    (0..SAMPLES).map(|_| sample(&mut draws)).collect()
}

/// Compares the shares of samples up to some places with the distribution function there.
fn follows(samples: &[f64], places: &[f64], function: &[f64]) {
    for (place, expected) in places.iter().zip(function) {
        let share = samples.iter().filter(|sample| *sample <= place).count() as f64 / samples.len() as f64;
        assert!((share - expected).abs() < BOUND, "{share} of the samples are up to {place}, not {expected}");
    }
}

fn moments(samples: &[f64]) -> [f64; 2] {
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    [mean, samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / samples.len() as f64]
}

#[test]
fn normals_follow_their_distribution() {
    let samples = samples(1, normal);
    // scipy.stats.norm.cdf(places)
    let function = [0.022750132, 0.158655254, 0.308537539, 0.5, 0.691462461, 0.841344746, 0.977249868];
    follows(&samples, &[-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0], &function);
    let [mean, variance] = moments(&samples);
    assert!(mean.abs() < 0.012 && (variance - 1.0).abs() < 0.018, "{mean} {variance}");
}

#[test]
fn gammas_follow_their_distribution() {
    // scipy.stats.gamma.cdf(places, shape)
    let cases = [
        (
            0.2,
            [2.04e-7, 0.000638, 0.0207, 0.179, 1.03],
            [0.050003858, 0.250031921, 0.499780269, 0.75010162, 0.949960085],
        ),
        (
            1.0,
            [0.0513, 0.288, 0.693, 1.39, 3.0],
            [0.05000637, 0.250238408, 0.499926404, 0.750924695, 0.950212932],
        ),
        (
            3.5,
            [1.08, 2.13, 3.17, 4.52, 7.03],
            [0.049543706, 0.250609286, 0.499343159, 0.750203042, 0.949875572],
        ),
    ];
    for (shape, places, function) in cases {
        let samples = samples(2, |draws| gamma(draws, shape));
        follows(&samples, &places, &function);
        let [mean, variance] = moments(&samples);
        assert!((mean - shape).abs() < 4.0 * (shape / SAMPLES as f64).sqrt(), "{shape}: {mean}");
        assert!((variance / shape - 1.0).abs() < 0.08, "{shape}: {variance}");
    }
}

#[test]
fn betas_follow_their_distribution() {
    let places = [0.01, 0.1, 0.3, 0.5, 0.9];
    // scipy.stats.beta.cdf(places, a, b)
    let cases = [
        (0.2, 0.2, [0.20977769, 0.336689778, 0.433204184, 0.5, 0.663310222]),
        (1.0, 1.0, [0.01, 0.1, 0.3, 0.5, 0.9]),
        (2.0, 5.0, [0.001460448, 0.114265, 0.579825, 0.890625, 0.999945]),
    ];
    for (a, b, function) in cases {
        follows(&samples(3, |draws| beta(draws, a, b)), &places, &function);
    }
}

#[test]
fn dirichlet_parts_have_their_means() {
    let concentrations = [0.5, 1.0, 2.5];
    for (part, concentration) in concentrations.iter().enumerate() {
        let samples = samples(4, |draws| dirichlet(draws, &concentrations)[part]);
        let mean = concentration / 4.0;
        let [sample_mean, variance] = moments(&samples);
        assert!((sample_mean - mean).abs() < 0.004, "{part}: {sample_mean}");
        assert!((variance - mean * (1.0 - mean) / 5.0).abs() < 0.001, "{part}: {variance}");
    }
}

#[test]
fn all_concentrations_give_parts_of_one() {
    let mut draws = Draws::new(Place { seed: 9, epoch: 0, position: 0 }, 0);
    for concentration in [f64::NAN, -1.0, 0.0, 1e-300, 1e-5, 1.0, 1e9, 1e300, f64::INFINITY] {
        let parts = dirichlet(&mut draws, &[concentration; 4]);
        let sum: f64 = parts.iter().sum();
        assert!((sum - 1.0).abs() < 1e-12, "{concentration}: {parts:?}");
        assert!(parts.iter().all(|part| (0.0..=1.0).contains(part)), "{concentration}: {parts:?}");
    }
    assert_eq!(dirichlet(&mut draws, &[]), [0.0; 0]);
    assert_eq!(dirichlet(&mut draws, &[2.0]), [1.0]);
}

#[test]
fn bits_stay() {
    // Of this implementation: a change would change what users get for a seed.
    let mut draws = Draws::new(Place { seed: 7, epoch: 2, position: 41 }, 3);
    let got =
        [normal(&mut draws), gamma(&mut draws, 0.5), gamma(&mut draws, 4.0), beta(&mut draws, 2.0, 3.0)];
    assert_eq!(got, [-0.13517236027860616, 0.37783332901278877, 4.140662287546489, 0.45141959654454994]);
}
