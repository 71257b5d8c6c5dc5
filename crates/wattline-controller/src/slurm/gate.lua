-- Wattline's gate: SLURM's job_submit plugin. Install it as job_submit.lua beside slurm.conf, with
-- JobSubmitPlugins=lua there.
--
-- A job for a controlled partition is held until the controller releases it, and what its user says
-- about it (the script's #WATTLINE lines and the comment) is kept in the admin comment, which users
-- cannot change. Users can neither release nor reorder such jobs.
--
-- When the controller has not written its heartbeat for a while, new jobs pass as if there were no
-- gate. Jobs that are held already are released by wattline-gate-fallback.
--
-- All of this runs inside slurmctld with its locks held: it is short, reads one small file, and an
-- error in it lets SLURM go on as without it. A site with a job_submit.lua of its own calls
-- wattline_job_submit and wattline_job_modify from there.

-- Settings ----------------------------------------------------------------------------------------

-- The controlled partitions, for example { "gpu", "gpu-long" }; empty means all.
local CONTROLLED = {}
-- Where the controller writes the seconds since the epoch, every few seconds.
local HEARTBEAT = "/run/wattline/heartbeat"
-- After so many seconds without a heartbeat new jobs pass.
local PATIENCE_S = 300
-- Who may release and reorder: root, and the user that the controller runs as.
local ADMINS = { [0] = true }

---------------------------------------------------------------------------------------------------

local MARK = "wattline/1"
local FUTURE_S = 2
local MOST_BYTES = 1024
local MOST_SCRIPT_BYTES = 65536
local LONGEST_WORD = 256
local CUT = " cut=1"

-- Whether one of the partitions in "a,b" is controlled. No partition at all is taken for one.
local function controlled(partitions)
  if #CONTROLLED == 0 or partitions == nil or partitions == "" then return true end
  for name in string.gmatch(partitions, "[^,]+") do
    for _, ours in ipairs(CONTROLLED) do
      if name == ours then return true end
    end
  end
  return false
end

-- Whether the controller is alive. One from the future says nothing: the clock was wrong then, or is
-- now. Two seconds are for clocks of two machines.
local function alive()
  local file = io.open(HEARTBEAT, "r")
  if file == nil then return false end
  local text = file:read(20)
  file:close()
  local beat = tonumber(string.match(text or "", "^%d+"))
  if beat == nil then return false end
  local age = os.time() - beat
  return age >= -FUTURE_S and age <= PATIENCE_S
end

-- Adds the key=value words of a text, up to a '#'.
local function add_words(words, text)
  for word in string.gmatch(text, "%S+") do
    if string.sub(word, 1, 1) == "#" then return end
    if word ~= ";" then
      words[#words + 1] = string.sub(string.gsub(word, "%c", "?"), 1, LONGEST_WORD)
    end
  end
end

-- The words of the #WATTLINE lines before the first line that is neither empty nor a comment.
local function script_words(script)
  local words = {}
  for line in string.gmatch(string.sub(script, 1, MOST_SCRIPT_BYTES) .. "\n", "([^\n]*)\n") do
    if not string.match(line, "^%s*$") and not string.match(line, "^%s*#") then break end
    local rest = string.match(line, "^%s*#WATTLINE(%s.*)$")
    if rest ~= nil then add_words(words, rest) end
  end
  return words
end

-- What is kept: the mark, the script's words, and the comment after a ';'.
local function kept(script, comment, held_by_user, names_nodes)
  local text = MARK
  if held_by_user then text = text .. " hold=user" end
  if names_nodes then text = text .. " nodes=user" end
  for _, word in ipairs(script_words(script or "")) do
    if #text + 1 + #word + #CUT > MOST_BYTES then return text .. CUT end
    text = text .. " " .. word
  end
  -- Comments that cannot be about us are not copied.
  if comment == nil or not string.find(comment, "[={]") then return text end
  comment = string.gsub(comment, "%c", " ")
  if #text + 3 + #comment > MOST_BYTES then return text .. CUT end
  return text .. " ; " .. comment
end

function wattline_job_submit(job, submit_uid)
  local partition = job.partition
  if partition == nil or partition == "" then partition = job.default_partition end
  if not controlled(partition) then
    -- Nobody but us sets our mark.
    if not ADMINS[submit_uid] and string.find(job.admin_comment or "", "^wattline/") then
      job.admin_comment = ""
    end
    return
  end
  local names_nodes = job.req_nodes ~= nil and job.req_nodes ~= ""
  job.admin_comment = kept(job.script, job.comment, job.priority == 0, names_nodes)
  if alive() then job.priority = 0 end
end

-- Says why a change is refused, or nothing.
function wattline_job_modify(job, record, modify_uid)
  if ADMINS[modify_uid] then return nil end
  local now, later = record.partition, job.partition
  if later ~= nil and later ~= "" and controlled(now) ~= controlled(later) then
    return "a job cannot move into or out of the partitions that Wattline controls"
  end
  if not controlled(now) then return nil end
  local function given(value) return value ~= nil and value ~= slurm.NO_VAL end
  local number = tostring(record.job_id or "N")
  -- As 'scontrol hold' says it: all jobs here are held until Wattline lets them go, so that SLURM could
  -- not tell one that its owner holds from the others.
  if given(job.priority) and job.priority == 0 then
    return "Wattline starts this job; to keep it waiting: wattline job hold " .. number
  end
  -- As 'scontrol release' and 'scontrol top' say it. A change of nice alone releases a held job in
  -- SLURM 22.05.
  if given(job.priority) or given(job.nice) then
    return "Wattline decides when this job starts; to let go one that you hold: wattline job release "
      .. number .. "; why it waits: wattline explain " .. number
  end
  if job.admin_comment ~= nil then return "the admin comment is Wattline's" end
  return nil
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  local fine, why = pcall(wattline_job_submit, job_desc, submit_uid)
  if not fine then slurm.log_error("wattline gate: submit: %s", tostring(why)) end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  local fine, why = pcall(wattline_job_modify, job_desc, job_rec, modify_uid)
  if not fine then
    slurm.log_error("wattline gate: modify: %s", tostring(why))
  elseif why ~= nil then
    slurm.log_user("%s", why)
    return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
  end
  return slurm.SUCCESS
end

slurm.log_info("wattline gate loaded")
return slurm.SUCCESS
