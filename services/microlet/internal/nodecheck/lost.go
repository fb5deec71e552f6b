package nodecheck

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
	"github.com/microlet/microlet/services/microlet/internal/explanation"
	"github.com/microlet/microlet/services/microlet/internal/podtemplates"
)

// managerFiles are where the kubelet's managers keep which CPUs and memory they have given to which container.
var managerFiles = []struct{ name, manager, policy string }{
	{"cpu_manager_state", "cpuManagerPolicy", "static"},
	{"memory_manager_state", "memoryManagerPolicy", "Static"},
}

// lost looks for what a kubelet of this node had, and microlet has not. Device plugins register again, and pods keep
// their devices. Topology hints of devices count only with a topologyManagerPolicy that stops the start.
func (h Host) lost(r *report, k *kubeletconfig.Config) {
	for _, f := range managerFiles {
		var state struct{ PolicyName string }
		text, err := os.ReadFile(h.path(filepath.Join(k.Node.RootDir, f.name)))
		if err != nil || json.Unmarshal(text, &state) != nil || state.PolicyName != f.policy || h.refuses(f.manager) {
			continue
		}
		r.warn("resource managers", fmt.Sprintf("%s says that the kubelet had %s: %s; containers lose what was theirs alone",
			filepath.Join(k.Node.RootDir, f.name), f.manager, f.policy), "move pods that need it to nodes with another agent")
	}
}

// Of the pods of a node, so many are asked for at once, and at most so many times.
const (
	podsPage   = 250
	podsPages  = 20
	maxPodList = 64 << 20
)

// pods looks for those of the node that microlet would refuse.
func (h Host) pods(ctx context.Context, r *report, client *http.Client, server, node string) {
	if h.Judge == nil {
		return
	}
	count, fields, refused, next := 0, map[string]int{}, []string(nil), ""
	for range podsPages {
		found, more, err := podsOf(ctx, client, server, node, next)
		if err != nil {
			r.add("pods", Skipped, "the pods of the node cannot be read: "+err.Error(), "")
			return
		}
		for _, p := range found {
			count++
			names := h.Judge(p.Manifest)
			for i := range names {
				names[i] = explanation.FieldShape(names[i])
			}
			if len(names) > 0 {
				refused = append(refused, strings.TrimPrefix(p.Of, "Pod "))
			}
			slices.Sort(names)
			for _, n := range slices.Compact(names) {
				fields[n]++
			}
		}
		if next = more; next == "" {
			break
		}
	}
	if len(refused) == 0 {
		r.ok("pods", "%d run on the node, and none uses a field that is not supported", count)
		return
	}
	var by []string
	for _, n := range slices.SortedFunc(maps.Keys(fields), func(x, y string) int {
		return cmp.Or(cmp.Compare(fields[y], fields[x]), cmp.Compare(x, y))
	}) {
		by = append(by, fmt.Sprintf("%s (%d)", n, fields[n]))
	}
	r.warn("pods", fmt.Sprintf("%d of the %d pods of the node would be refused, because of %s: %s", len(refused), count,
		explanation.Few(by), explanation.Few(refused)), "move them to other nodes first, or correct them")
}

// podsOf asks the API server for a page of the node's pods.
func podsOf(ctx context.Context, client *http.Client, server, node, next string) (pods []podtemplates.Pod, more string,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	query := url.Values{"fieldSelector": {"spec.nodeName=" + node}, "limit": {fmt.Sprint(podsPage)}}
	if next != "" {
		query.Set("continue", next)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/api/v1/pods?"+query.Encode(), nil)
	if err != nil {
		return nil, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, "", fmt.Errorf("%s", reason(err))
	}
	defer func() { _ = response.Body.Close() }() // it was read
	if response.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("the API server answers %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxPodList))
	if err != nil {
		return nil, "", err
	}
	var list struct {
		Metadata struct{ Continue string }
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, "", err
	}
	pods, _, err = podtemplates.Find(body)
	return pods, list.Metadata.Continue, err
}
