//! How a register type becomes a kernel: the methods that are compiled for its instruction set.

/// The kernel `$kernel` over `$register`. `features` is what its functions are compiled for; a kernel exists only on a machine
/// that `has` all of it. `solve` is the module of [`super::recover`] that suits it, `stacked` the registers of a column to work
/// on at a time where columns compete for cache sets, `line` those of a cache line.
macro_rules! kernel {
    (
        $kernel:ident, $name:literal, $register:ty, $features:literal,
        solve: $solve:ident, stacked: $stacked:literal, line: $line:literal, has: $($feature:tt),+
    ) => {
        /// The kernel; only `get` makes one.
        #[derive(Debug)]
        pub(super) struct $kernel(());

        impl $kernel {
            /// The kernel, on a machine that has what it needs.
            pub(super) fn get() -> Option<&'static Self> {
                static KERNEL: $kernel = $kernel(());
                ($(std::arch::is_x86_feature_detected!($feature))&&+).then_some(&KERNEL)
            }
        }

        impl $crate::parity::kernel::Kernel for $kernel {
            fn name(&self) -> &'static str {
                $name
            }

            $crate::parity::x86_64::kernel::methods! {
                $register, $features,
                fn xor(srcs: &[&[u8]], dst: &mut [u8], place: Place) = stripe::xor::<$register, $line>;
                fn pq(srcs: &[&[u8]], p: &mut [u8], q: &mut [u8], place: Place) = stripe::pq::<$register, $stacked, $line>;
                fn q(srcs: &[&[u8]], q: &mut [u8], place: Place) = stripe::q::<$register, $stacked, $line>;
                fn copy_pq(srcs: &[&[u8]], copies: &mut [&mut [u8]], p: &mut [u8], q: &mut [u8], place: Place)
                    = stripe::copy_pq::<$register, $line>;
                fn delta(factor: u8, old: &[u8], new: &[u8], p: Option<&mut [u8]>, q: Option<&mut [u8]>)
                    = update::delta::<$register>;
                fn recover_by_q(known: &[&[u8]], x: usize, q: &[u8], dst: &mut [u8], place: Place)
                    = $solve::by_q::<$register, $line>;
                fn recover_two(known: &[&[u8]], lost: LostTwo<'_>, p: &[u8], q: &[u8], place: Place)
                    = $solve::two::<$register, $line>;
                fn verify(srcs: &[&[u8]], p: Option<&[u8]>, q: Option<&[u8]>) -> Differs = stripe::verify::<$register>;
            }
        }
    };
}

/// Methods of a kernel, each of which is one of the generic functions compiled for `$features`.
macro_rules! methods {
    (
        $register:ty, $features:literal,
        $(fn $method:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? = $function:expr;)*
    ) => {
        $(
            fn $method(&self, $($arg: $type),*) $(-> $result)? {
                #[target_feature(enable = $features)]
                fn compiled($($arg: $type),*) $(-> $result)? {
                    // SAFETY: this function only runs on a machine that has its target features, which are the register's
                    // instruction set.
                    unsafe { $function($($arg),*) }
                }
                // SAFETY: `self` exists, so the machine has these features (`get`).
                unsafe { compiled($($arg),*) }
            }
        )*
    };
}

pub(super) use {kernel, methods};
