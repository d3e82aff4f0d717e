use proptest::prelude::*;

use super::*;
use crate::testkit::{bits, numbers, product};

/// A number of an image, zero outside.
fn pixel(images: &[f32], [channels, height, width]: [usize; 3], at: [usize; 2], [y, x]: [isize; 2]) -> f32 {
    let [image, channel] = at;
    if y < 0 || x < 0 || y >= height as isize || x >= width as isize {
        return 0.0;
    }
    images[((image * channels + channel) * height + y.unsigned_abs()) * width + x.unsigned_abs()]
}

impl Conv {
    fn place(&self, axis: usize, pixel: usize, tap: usize) -> isize {
        (pixel * self.stride[axis] + tap * self.dilation[axis]) as isize - self.padding[axis].0 as isize
    }

    /// Channel, row and column of each number of the weight for one output.
    fn numbers(&self) -> impl Iterator<Item = [usize; 3]> + Clone {
        let Conv { channels, kernel: [rows, columns], .. } = *self;
        (0..channels)
            .flat_map(move |channel| (0..rows).flat_map(move |y| (0..columns).map(move |x| [channel, y, x])))
    }

    fn plain_forward(&self, input: &[f32], weight: &[f32]) -> Vec<f32> {
        let [height, width] = self.output().unwrap();
        let mut output = Vec::new();
        for image in 0..self.batch {
            for output_channel in 0..self.outputs {
                let weight = &weight[output_channel * self.taps()..][..self.taps()];
                for y in 0..height {
                    for x in 0..width {
                        output.push(product(self.numbers().zip(weight).map(
                            |([channel, row, column], weight)| {
                                let place = [self.place(0, y, row), self.place(1, x, column)];
                                let shape = [self.channels, self.height, self.width];
                                (*weight, pixel(input, shape, [image, channel], place))
                            },
                        )));
                    }
                }
            }
        }
        output
    }

    fn plain_input_gradient(&self, gradient: &[f32], weight: &[f32]) -> Vec<f32> {
        let [height, width] = self.output().unwrap();
        let mut found = Vec::new();
        for image in 0..self.batch {
            for channel in 0..self.channels {
                for y in 0..self.height {
                    for x in 0..self.width {
                        let mut steps = Vec::new();
                        for output in 0..self.outputs {
                            for row in 0..self.kernel[0] {
                                for column in 0..self.kernel[1] {
                                    let from = [
                                        (y + self.padding[0].0) as isize - (row * self.dilation[0]) as isize,
                                        (x + self.padding[1].0) as isize
                                            - (column * self.dilation[1]) as isize,
                                    ];
                                    let stride = self.stride.map(|stride| stride as isize);
                                    if from[0].rem_euclid(stride[0]) != 0
                                        || from[1].rem_euclid(stride[1]) != 0
                                    {
                                        continue;
                                    }
                                    let place =
                                        [from[0].div_euclid(stride[0]), from[1].div_euclid(stride[1])];
                                    let number = ((output * self.channels + channel) * self.kernel[0] + row)
                                        * self.kernel[1]
                                        + column;
                                    let shape = [self.outputs, height, width];
                                    steps.push((
                                        weight[number],
                                        pixel(gradient, shape, [image, output], place),
                                    ));
                                }
                            }
                        }
                        found.push(product(steps.into_iter()));
                    }
                }
            }
        }
        found
    }

    fn plain_weight_gradient(&self, input: &[f32], gradient: &[f32]) -> Vec<f32> {
        let [height, width] = self.output().unwrap();
        let mut found = Vec::new();
        for output in 0..self.outputs {
            for [channel, row, column] in self.numbers() {
                let mut steps = Vec::new();
                for image in 0..self.batch {
                    for y in 0..height {
                        for x in 0..width {
                            let shape = [self.channels, self.height, self.width];
                            let place = [self.place(0, y, row), self.place(1, x, column)];
                            let gradient =
                                gradient[((image * self.outputs + output) * height + y) * width + x];
                            steps.push((gradient, pixel(input, shape, [image, channel], place)));
                        }
                    }
                }
                found.push(product(steps.into_iter()));
            }
        }
        found
    }

    fn obeys_the_definition(&self, seed: u64) {
        let pixels = self.output().unwrap();
        let (input, weight) = (numbers(seed, self.input_len()), numbers(seed ^ 1 << 20, self.weight_len()));
        let gradient = numbers(!seed, self.output_len(pixels));
        let expected = [
            bits(&self.plain_forward(&input, &weight)),
            bits(&self.plain_input_gradient(&gradient, &weight)),
            bits(&self.plain_weight_gradient(&input, &gradient)),
        ];
        for level in Level::available() {
            let found = [
                self.forward(level, &input, &weight).unwrap(),
                self.input_gradient(level, &gradient, &weight).unwrap(),
                self.weight_gradient(level, &input, &gradient).unwrap(),
            ];
            for (index, name) in ["forward", "input_gradient", "weight_gradient"].into_iter().enumerate() {
                assert!(bits(&found[index]) == expected[index], "{name} with {level}: {self:?}");
            }
        }
    }
}

prop_compose! {
    fn convolutions()(
        batch in 0_usize..5,
        channels in 0_usize..6,
        outputs in 0_usize..10,
        size in [0_usize..12, 0_usize..12],
        kernel in [1_usize..4, 1_usize..4],
        stride in [1_usize..4, 1_usize..4],
        padding in [(0_usize..3, 0_usize..3), (0_usize..3, 0_usize..3)],
        dilation in [1_usize..3, 1_usize..3],
    ) -> Conv {
        let [height, width] = size;
        Conv { batch, channels, height, width, outputs, kernel, stride, padding, dilation }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_level_computes_the_definition(conv in convolutions(), seed in any::<u64>()) {
        prop_assume!(conv.output().is_ok());
        conv.obeys_the_definition(seed);
    }
}

/// The layers of a ResNet-18 for images of 32 pixels have these proportions.
#[test]
fn the_layers_of_a_resnet_obey_the_definition() {
    let layer = |channels, outputs, size, stride, kernel: usize| Conv {
        batch: 3,
        channels,
        height: size,
        width: size,
        outputs,
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [(kernel / 2, kernel / 2); 2],
        ..Conv::default()
    };
    for conv in [
        layer(3, 16, 32, 1, 3),
        layer(64, 32, 8, 1, 3),
        layer(64, 48, 8, 2, 3),
        layer(64, 40, 8, 2, 1),
        layer(96, 32, 4, 1, 3),
    ] {
        conv.obeys_the_definition(7);
    }
}

#[test]
fn threads_change_no_bit() {
    let conv = Conv {
        batch: 5,
        channels: 24,
        height: 9,
        width: 9,
        outputs: 48,
        kernel: [3, 3],
        stride: [2, 2],
        padding: [(1, 1); 2],
        ..Conv::default()
    };
    let (input, weight) = (numbers(3, conv.input_len()), numbers(4, conv.weight_len()));
    let gradient = numbers(5, conv.output_len(conv.output().unwrap()));
    let all = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let level = Level::best();
            [
                bits(&conv.forward(level, &input, &weight).unwrap()),
                bits(&conv.input_gradient(level, &gradient, &weight).unwrap()),
                bits(&conv.weight_gradient(level, &input, &gradient).unwrap()),
            ]
        })
    };
    let alone = all(1);
    assert!([2, 3, 7].into_iter().all(|threads| all(threads) == alone));
}

#[test]
fn a_convolution_that_does_not_exist_is_refused() {
    let conv = Conv { height: 2, width: 5, kernel: [3, 1], ..Conv::default() };
    assert_eq!(conv.output(), Err(ConvError::TooLarge { kernel: [3, 1], image: [2, 5] }));
    assert_eq!(Conv { stride: [0, 1], ..conv }.output(), Err(ConvError::Zero));
    let conv = Conv { padding: [(1, 0), (0, 0)], ..conv };
    assert_eq!(conv.output(), Ok([1, 5]));
    let refusal = conv.forward(Level::best(), &[0.0; 9], &[0.0; 3]).unwrap_err();
    assert_eq!(refusal.to_string(), "the input has 9 numbers; the convolution needs 10");
}
