// Package kubeletconfig turns a kubelet's command line and configuration files into one validated configuration.
//
// Its inputs are the command line of kubelet 1.37, the KubeletConfiguration file that --config names, and the drop-in
// files of --config-dir. Its output is a Config, which a supervisor may write once (Config.WriteResolved) for the
// services to start from (ReadResolved), or a list of everything that is wrong with the inputs.
//
// What it guarantees:
//   - Precedence is the kubelet's: defaults, then the file, then the drop-ins in lexical order, then the flags. Feature
//     gates of all of them are merged, key by key (https://github.com/kubernetes/kubernetes/issues/56171, KEP-3983).
//   - An unknown or duplicate key is refused, with the nearest known key. The kubelet itself starts with an unknown
//     key: it logs it in the file and drops it in a drop-in.
//   - Every problem is reported at once, each with the field or flag, its value, where it was set, and what to do.
//   - What is known but not built yet is never ignored in silence: a setting that enforces or protects something
//     refuses the start, any other is named in a Warning. support_table.go says which is which, and
//     docs/configuration.md is generated from it.
//   - A Config from Load or ReadResolved has been validated, and every pointer that the kubelet defaults is set.
package kubeletconfig
