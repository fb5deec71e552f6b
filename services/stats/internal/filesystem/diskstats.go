package filesystem

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Traffic is what a block device has done, as /proc/diskstats counts it.
type Traffic struct {
	Major, Minor                                             int
	ReadsCompleted, ReadsMerged, SectorsRead, ReadTime       uint64
	WritesCompleted, WritesMerged, SectorsWritten, WriteTime uint64
	IOInProgress, IOTime, WeightedIOTime                     uint64
}

// diskName is what cAdvisor reports on: disks, their partitions, and what device-mapper makes of them.
var diskName = regexp.MustCompile(`^(?:(?:s|v|xv)d[a-z]+\d*|dm-\d+)$`)

// diskFields is how many numbers of a line are read; kernels since 4.18 have more.
const diskFields = 14

// Disks returns the traffic of the node's disks by their device, such as /dev/sda1. A line that cannot be read is left
// out; the error, of the first of them, comes with the others.
func Disks() (map[string]Traffic, error) {
	text, err := os.ReadFile("/proc/diskstats")
	if err != nil {
		return nil, err
	}
	return parseDisks(string(text))
}

func parseDisks(text string) (map[string]Traffic, error) {
	disks := map[string]Traffic{}
	var failed error
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 || !diskName.MatchString(fields[2]) {
			continue
		}
		t, err := parseDisk(fields)
		if err != nil {
			if failed == nil {
				failed = fmt.Errorf("/proc/diskstats: line %.200q: %w", line, err)
			}
			continue
		}
		disks["/dev/"+fields[2]] = t
	}
	return disks, failed
}

func parseDisk(fields []string) (t Traffic, err error) {
	if len(fields) < diskFields {
		return t, fmt.Errorf("it has %d fields and not %d", len(fields), diskFields)
	}
	if t.Major, err = strconv.Atoi(fields[0]); err != nil {
		return t, err
	}
	if t.Minor, err = strconv.Atoi(fields[1]); err != nil {
		return t, err
	}
	for i, to := range []*uint64{
		&t.ReadsCompleted, &t.ReadsMerged, &t.SectorsRead, &t.ReadTime,
		&t.WritesCompleted, &t.WritesMerged, &t.SectorsWritten, &t.WriteTime,
		&t.IOInProgress, &t.IOTime, &t.WeightedIOTime,
	} {
		if *to, err = strconv.ParseUint(fields[3+i], 10, 64); err != nil {
			return t, err
		}
	}
	return t, nil
}
