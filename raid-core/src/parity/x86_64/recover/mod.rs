//! Lost data blocks, solved for in one pass: everything between the loads of what is left and the stores of what was lost
//! stays in registers. The equations are those of H. P. Anvin, "The mathematics of RAID-6" (2004), section 4.
//!
//! [`horner`] makes the sums of the known blocks and multiplies at the end, [`weights`] multiplies every known block by what
//! it counts in the result: less to do where a multiplication by any constant is one instruction.

pub(super) mod horner;
pub(super) mod weights;
