package node

import (
	"log/slog"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

func TestHostReport(t *testing.T) {
	const title = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	const swap = title + "/swapfile file\t\t1048572\t\t0\t\t-2\n"
	for name, test := range map[string]struct {
		host Host
		want []string
	}{
		"v2":                       {Host{unified: true, swaps: title}, nil},
		"v1":                       {Host{swaps: title}, []string{"Warning CgroupV1 " + messageCgroupV1}},
		"swap that can be avoided": {Host{unified: true, swaps: swap, keepsOut: func() bool { return true }}, nil},
		"swap that cannot": {Host{unified: true, swaps: swap, keepsOut: func() bool { return false }},
			[]string{"Warning PossibleMemoryBackedVolumesOnDisk " + messageSwapped}},
		"a machine that does not say it": {Host{unified: true}, nil},
	} {
		recorder := record.NewFakeRecorder(10)
		test.host.events, test.host.node, test.host.log = recorder, &v1.ObjectReference{}, slog.New(slog.DiscardHandler)
		test.host.Report()
		close(recorder.Events)
		var got []string
		for e := range recorder.Events {
			got = append(got, e)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
