package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	flagzv1beta1 "k8s.io/apiserver/pkg/server/flagz/api/v1beta1"
	statuszv1beta1 "k8s.io/apiserver/pkg/server/statusz/api/v1beta1"

	"github.com/microlet/microlet/services/internal/kubeversion"
	"github.com/microlet/microlet/services/internal/telemetry"
)

// The gates of the two pages.
const (
	gateStatusz = "ComponentStatusz"
	gateFlagz   = "ComponentFlagz"
)

// component is what the pages call the program, because their readers look for a kubelet.
const component = "kubelet"

const pageHeader = `
%s %s
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.
`

// zGroup is the API group of the pages as objects.
const zGroup = "config.k8s.io"

// asObject reports whether a request wants the page as an object of this kind, which a client must ask for
// by name; ok is false when it wants what there is not.
func asObject(r *http.Request, kind string) (object, ok bool) {
	accept := r.Header.Get("Accept")
	if accept == "" {
		return false, true
	}
	for _, one := range strings.Split(accept, ",") {
		media, p, err := mime.ParseMediaType(one)
		if err != nil {
			continue
		}
		switch {
		case media == "text/plain" || media == "text/*" || media == "*/*":
			return false, true
		case media == "application/json" && p["g"] == zGroup && p["v"] == "v1beta1" && p["as"] == kind:
			return true, true
		}
	}
	return false, false
}

func (s *Server) statusz(w http.ResponseWriter, r *http.Request) {
	object, ok := asObject(r, "Statusz")
	if !ok {
		http.Error(w,
			"only text/plain, or application/json;g=config.k8s.io;v=v1beta1;as=Statusz can be had", http.StatusNotAcceptable)
		return
	}
	status := statuszv1beta1.Statusz{
		TypeMeta:         metav1.TypeMeta{Kind: "Statusz", APIVersion: zGroup + "/v1beta1"},
		ObjectMeta:       metav1.ObjectMeta{Name: component},
		StartTime:        metav1.Time{Time: s.started},
		UptimeSeconds:    int64(time.Since(s.started).Seconds()),
		GoVersion:        goruntime.Version(),
		BinaryVersion:    telemetry.Version,
		EmulationVersion: kubeversion.MajorMinor,
		Paths:            s.paths(),
	}
	if object {
		writeObject(w, status)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, pageHeader+`
Started: %s
Up: %s
Go version: %s
Binary version: %s
Emulation version: %s
Paths: %s
`, component, "statusz", status.StartTime.Format(time.UnixDate), time.Since(s.started).Round(time.Second),
		status.GoVersion,
		status.BinaryVersion, status.EmulationVersion, strings.Join(status.Paths, " "))
}

// paths are the first segments of all that is served.
func (s *Server) paths() []string {
	found := map[string]bool{}
	for _, r := range s.routes() {
		path, _, _ := strings.Cut(r.pattern, "/{")
		found[strings.TrimSuffix(path, "/")] = true
	}
	return slices.Sorted(maps.Keys(found))
}

func (s *Server) flagz(w http.ResponseWriter, r *http.Request) {
	object, ok := asObject(r, "Flagz")
	if !ok {
		http.Error(w,
			"only text/plain, or application/json;g=config.k8s.io;v=v1beta1;as=Flagz can be had", http.StatusNotAcceptable)
		return
	}
	if object {
		writeObject(w, flagzv1beta1.Flagz{
			TypeMeta:   metav1.TypeMeta{Kind: "Flagz", APIVersion: zGroup + "/v1beta1"},
			ObjectMeta: metav1.ObjectMeta{Name: component}, Flags: s.options.Flags,
		})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, pageHeader, component, "flagz")
	for _, name := range slices.Sorted(maps.Keys(s.options.Flags)) {
		fmt.Fprintf(w, "%s=%s\n", name, s.options.Flags[name])
	}
}

func writeObject(w http.ResponseWriter, object any) {
	data, err := json.Marshal(object)
	if err != nil {
		http.Error(w, fmt.Sprintf("encode answer: %v", err), http.StatusInternalServerError)
		return
	}
	writeJSON(w, data)
}
