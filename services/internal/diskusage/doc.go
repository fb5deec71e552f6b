// Package diskusage measures how much directories take, without du.
//
// The kubelet walks the directories of a pod in its own process, so a file system that does not answer holds a thread
// of the kubelet for ever, and a large volume takes a processor. Here child processes walk. The Measurer starts them
// from its own binary, gives each a slice of a walk at a time, and owns the schedule:
//
//   - All walks together look at no more than Config.Budget entries a minute. The directory that has waited longest
//     gets the next slice, so a large one delays no small one by more than a slice.
//   - A child has the lowest CPU priority and the idle I/O class. It ends when nothing is due.
//   - A walk never crosses a mount and never follows a symbolic link. It holds one entry at a time, a bounded number of
//     open folders and a bounded number of inodes, however deep or wide a tree is.
//   - If a child is silent for a second, another child takes the directories of other devices. If it stays silent, it
//     is killed without waiting for its end. Its device rests until the kernel has let it end. The number of children
//     is bounded, those that cannot end included.
//
// A figure has the time at which its walk began. It is late if it is older than the period although its directory
// answers: a walk through a large directory, or through many, takes longer than a period. The sums are those of du:
// allocated blocks, and a file with several hard links counts once.
//
// A Walker measures directories once, in a child of the same kind without a budget.
//
// Project quotas are not read. The kubelet uses them only for pods in a user namespace, behind a gate, and the
// kernel shows them only to a process with CAP_SYS_ADMIN.
package diskusage
