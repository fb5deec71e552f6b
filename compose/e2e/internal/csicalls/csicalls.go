// Package csicalls judges what was called of the rig's CSI driver.
package csicalls

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
)

// Methods of the driver.
const (
	Attach       = "ControllerPublishVolume"
	Detach       = "ControllerUnpublishVolume"
	Capabilities = "NodeGetCapabilities"
	Stage        = "NodeStageVolume"
	Publish      = "NodePublishVolume"
	Unpublish    = "NodeUnpublishVolume"
	Unstage      = "NodeUnstageVolume"
	Expand       = "NodeExpandVolume"
	Stats        = "NodeGetVolumeStats"
)

// Line is the begin of a call, or its end if it has a code. A line without a call is a start of the driver.
type Line struct {
	Time   time.Time `json:"time"`
	Call   int       `json:"call"`
	Method string    `json:"method"`
	// Number counts the calls of the node's service.
	Number   int               `json:"number"`
	Volume   string            `json:"volume"`
	Staging  string            `json:"staging"`
	Target   string            `json:"target"`
	ReadOnly bool              `json:"readOnly"`
	Context  map[string]string `json:"context"`
	Publish  map[string]string `json:"publish"`
	Secrets  []string          `json:"secrets"`
	// Gone is a line of its own: the call's caller does not wait any more.
	Gone    bool   `json:"gone"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Ends reports whether the line is the end of a call.
func (l Line) Ends() bool { return l.Code != "" }

// OK reports whether the line is the end of a call that has succeeded.
func (l Line) OK() bool { return l.Code == codes.OK.String() }

// Read returns the lines of a file, from its beginning.
func Read(path string) ([]Line, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // the last one may be half written
	var lines []Line
	for part := range bytes.Lines(whole) {
		var l Line
		if err := json.Unmarshal(part, &l); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", path, err, part)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// Rule says what becomes of the calls that have its method, its volume and its number, of which each may be empty.
type Rule struct {
	Method string `json:"method,omitempty"`
	Volume string `json:"volume,omitempty"`
	Number int    `json:"number,omitempty"`
	// After: it applies when the work is done, and not before.
	After bool `json:"after,omitempty"`
	// Milliseconds is how late the call is, also if its caller has gone.
	Milliseconds int64 `json:"milliseconds,omitempty"`
	// Hold keeps the call until the rule is taken back, or its caller has gone.
	Hold bool `json:"hold,omitempty"`
	// Exit ends the driver's process.
	Exit bool `json:"exit,omitempty"`
	// Code and Message are the error of the call.
	Code    uint32 `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Write makes these the only rules.
func Write(path string, rules ...Rule) error {
	text, err := json.Marshal(append([]Rule{}, rules...))
	if err != nil {
		return err
	}
	part := path + ".part"
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// volume is what may be true of a volume. A call that has failed in a way that does not say whether its work was done
// leaves both open.
type volume struct {
	attached, staged bool // it was done, and nothing was begun that undoes it
	mayBeStaged      bool
	published        map[string]bool // the targets at which it may be, and whether it was
	calls            map[int]Line    // that have not ended, and have a caller
}

// judge follows the calls.
type judge struct {
	volumes  map[string]*volume
	breaches []string
}

// Breaches are the calls that no driver need expect: a publish before the stage, a detach of a staged volume, and two
// calls for one volume at a time, unless the caller of the first has stopped waiting. Statistics are asked for at any
// time, as by the kubelet: a driver that hangs in them holds up nothing else.
func Breaches(lines []Line) []string { return follow(lines).breaches }

// Left is what stays staged or published after the calls.
func Left(lines []Line) []string {
	var left []string
	for id, v := range follow(lines).volumes {
		if v.mayBeStaged {
			left = append(left, "staged: "+id)
		}
		for target := range v.published {
			left = append(left, "published: "+id+" at "+target)
		}
	}
	slices.Sort(left)
	return left
}

func follow(lines []Line) *judge {
	j := &judge{volumes: map[string]*volume{}}
	for _, l := range lines {
		switch {
		case l.Call == 0:
			for _, v := range j.volumes {
				clear(v.calls)
			}
		case l.Volume == "":
		case l.Gone:
			delete(j.of(l).calls, l.Call)
		case l.Ends():
			j.end(l)
		default:
			j.begin(l)
		}
	}
	return j
}

func (j *judge) of(l Line) *volume {
	v := j.volumes[l.Volume]
	if v == nil {
		v = &volume{published: map[string]bool{}, calls: map[int]Line{}}
		j.volumes[l.Volume] = v
	}
	return v
}

func (j *judge) breach(l Line, format string, args ...any) {
	j.breaches = append(j.breaches, fmt.Sprintf("call %d, %s of %s: %s", l.Call, l.Method, l.Volume,
		fmt.Sprintf(format, args...)))
}

func (j *judge) begin(l Line) {
	v := j.of(l)
	if l.Number > 0 && l.Method != Stats {
		for _, other := range v.calls {
			j.breach(l, "call %d, %s, is under way", other.Call, other.Method)
		}
		v.calls[l.Call] = l
	}
	switch l.Method {
	case Detach:
		if v.mayBeStaged {
			j.breach(l, "it is staged")
		}
		v.attached = false
	case Stage:
		if !v.attached {
			j.breach(l, "it is not attached")
		}
		v.mayBeStaged = true
	case Publish:
		if l.Staging != "" && !v.staged {
			j.breach(l, "it is not staged")
		}
		if _, known := v.published[l.Target]; !known {
			v.published[l.Target] = false
		}
	case Unstage:
		for target := range v.published {
			j.breach(l, "it is published at %s", target)
		}
		v.staged = false
	}
}

func (j *judge) end(l Line) {
	v := j.of(l)
	delete(v.calls, l.Call)
	switch {
	case l.Method == Attach && l.OK():
		v.attached = true
	case l.Method == Stage && l.OK(): // perhaps long after its caller has gone
		v.staged, v.mayBeStaged = true, true
	case l.Method == Stage && final(l) && !v.staged, l.Method == Unstage && l.OK():
		v.mayBeStaged = false
	case l.Method == Publish && l.OK():
		v.published[l.Target] = true
	case l.Method == Publish && final(l) && !v.published[l.Target], l.Method == Unpublish && l.OK():
		delete(v.published, l.Target)
	}
}

// final reports whether the error says that the work was not done.
func final(l Line) bool {
	open := []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted}
	return !slices.ContainsFunc(open, func(c codes.Code) bool { return c.String() == l.Code })
}
